'use strict';
// Tests of vitest: hands the reporter to the runner (vitest_runner.mjs), which takes it before code of the tree runs.

module.exports = (reporter) => {
    globalThis[Symbol.for('repairgym.vitest')] = reporter;
};

'use strict';
// Tests of jest: hands the reporter to its main script (jest_main.cjs) and its runner (jest_runner.cjs).

module.exports = (reporter) => {
    globalThis[Symbol.for('repairgym.jest')] = reporter;
};

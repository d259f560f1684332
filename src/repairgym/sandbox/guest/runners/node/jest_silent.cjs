'use strict';
// A reporter of jest that says nothing: results leave by the runner.

module.exports = class Silent {};

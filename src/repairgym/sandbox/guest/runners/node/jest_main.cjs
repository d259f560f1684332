'use strict';
// The main script of a run with jest: its own program with the package's configuration, with the test file as argument.

const path = require('node:path');

const reporter = globalThis[Symbol.for('repairgym.jest')];
const { modules, scratch, testbed } = reporter;
const { runCLI } = require(`${modules}/jest`);
const argv = {
    _: [], $0: 'jest', runTestsByPath: true, nonFlagArgs: [path.join(testbed, process.argv[2])], runInBand: true,
    watchman: false, watch: false, ci: true, cache: false, cacheDirectory: path.join(scratch, 'jest'), coverage: false,
    reporters: [path.join(__dirname, 'jest_silent.cjs')], testRunner: path.join(__dirname, 'jest_runner.cjs'),
    testTimeout: 2 ** 31 - 1, forceExit: false, detectOpenHandles: false, updateSnapshot: false, haste: '{"enableSymlinks":false}',
};
argv._ = argv.nonFlagArgs;
delete argv.nonFlagArgs;
runCLI(argv, [testbed]).then(({ results }) => {
    process.exitCode = results.success ? 0 : 1;
    // What ended the file before its runner: a transformer, an environment, a file of set-up.
    for (const { testExecError } of results.testResults) { if (testExecError) { crashed(testExecError); } }
}, (error) => { process.exitCode = 2; crashed(error); console.error(error); });

// Jest writes a heading first; only the first line is kept.
function crashed({ name, message }) { reporter.crashed({ name, message: `${message}`.replace(/\s+/g, ' ') }); }

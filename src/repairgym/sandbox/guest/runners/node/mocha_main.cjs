'use strict';
// The main script of a run with mocha: its own program without its configuration files, with the test file as argument.

const KEY = Symbol.for('repairgym.mocha');
const { Mocha, Reporter, guardGlobals, note, reporter } = globalThis[KEY];
delete globalThis[KEY];

const mocha = new Mocha({ ui: process.argv[3] || 'bdd', timeout: 0, reporter: Reporter });
mocha.suite.on('pre-require', () => guardGlobals());
mocha.addFile(process.argv[2]);
mocha.loadFilesAsync().then(() => {
    note(mocha.suite);
    mocha.run((failures) => { process.exitCode = failures ? 1 : 0; reporter.done(); });
});

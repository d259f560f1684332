'use strict';
// Tests of mocha: its own program without its configuration files, with a reporter of ours. Started as the main script
// with the test file as its argument, and loaded by the reporter before.

const BASE = 'repairgym.mocha';

if (require.main === module) {
    const { Mocha, reporter } = globalThis[Symbol.for(BASE)];
    delete globalThis[Symbol.for(BASE)];
    const mocha = new Mocha({ ui: process.argv[3] || 'bdd', timeout: 0, reporter: makeReporter(reporter) });
    mocha.addFile(process.argv[2]);
    mocha.loadFilesAsync().then(() => mocha.run((failures) => { process.exitCode = failures ? 1 : 0; reporter.done(); }));
}

module.exports = (reporter) => {
    const Mocha = require(`${reporter.modules}/mocha`);
    reporter.guard(Mocha.Runner.prototype, 'mocha.Runner');
    reporter.guard(Mocha.Runnable.prototype, 'mocha.Runnable');
    globalThis[Symbol.for(BASE)] = { Mocha, reporter };
};

function makeReporter(reporter) {
    return function SignedReporter(runner) {
        let start = reporter.now();
        const titles = (test) => test.titlePath().join('\u0000');
        const ended = (test, outcome, error) => {
            reporter.ended(titles(test), outcome, reporter.message(error), Number(reporter.now() - start) / 1e9);
        };
        runner.on('test', (test) => { start = reporter.now(); reporter.started(titles(test)); });
        runner.on('pass', (test) => ended(test, 'passed'));
        runner.on('pending', (test) => ended(test, 'skipped'));
        runner.on('fail', (test, error) => {
            if (test.type !== 'hook') { ended(test, 'failed', error); return; }
            // The tests below the hook do not run.
            test.parent.eachTest((below) => { if (!below.state) { ended(below, 'error', error); } });
        });
    };
}

'use strict';
// Tests of mocha: a reporter of ours for its main script (mocha_main.cjs), loaded before code of the tree.

const INTERFACE = ['describe', 'context', 'it', 'specify', 'before', 'after', 'beforeEach', 'afterEach', 'xit', 'xdescribe'];

module.exports = (reporter) => {
    const Mocha = require(`${reporter.modules}/mocha`);
    for (const name of ['Runner', 'Runnable', 'Test', 'Suite', 'Hook', 'Context']) {
        reporter.guard(Mocha[name].prototype, `mocha.${name}`, true);
    }
    const functions = new Map();
    globalThis[Symbol.for('repairgym.mocha')] = {
        Mocha,
        Reporter: makeReporter(reporter, functions),
        reporter,
        // The functions of the tests, as their file gave them.
        note(suite) { suite.eachTest((test) => { functions.set(test, test.fn); }); },
        guardGlobals() {
            reporter.guardProperties(globalThis, INTERFACE, 'mocha');
        },
    };
};

function makeReporter(reporter, functions) {
    return function SignedReporter(runner) {
        let start = reporter.now();
        const titles = (test) => test.titlePath().join('\u0000');
        const ended = (test, outcome, error) => {
            reporter.ended(titles(test), outcome, reporter.message(error), Number(reporter.now() - start) / 1e9, error);
        };
        runner.on('test', (test) => { start = reporter.now(); reporter.started(titles(test)); });
        runner.on('pass', (test) => {
            const isOwn = functions.get(test) === test.fn;
            ended(test, isOwn ? 'passed' : 'failed', isOwn ? undefined : 'the function of the test is another one');
        });
        runner.on('pending', (test) => ended(test, 'skipped'));
        runner.on('fail', (test, error) => {
            if (test.type !== 'hook') { ended(test, 'failed', error); return; }
            // The tests below the hook do not run.
            test.parent.eachTest((below) => { if (!below.state) { ended(below, 'error', error); } });
        });
    };
}

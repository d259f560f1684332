'use strict';
// The runner of jest that reports each test: jest-circus with an ear for its events. Jest loads it before code of the tree.

const KEY = Symbol.for('repairgym.jest');
const reporter = globalThis[KEY];
delete globalThis[KEY];
// By its name: from jest 30 on, only the package says where its runner lies.
const runner = require('node:module').createRequire(`${reporter.modules}/`)('jest-circus/runner');
const circus = runner.default || runner;

module.exports = async function run(globalConfig, config, environment, ...given) {
    const told = new Map();
    const given_to = environment.handleTestEvent;
    const tests = [];
    environment.handleTestEvent = function handle(event, state) {
        hear(event, state, { realm: environment.global, tests, told });
        return given_to ? given_to.call(environment, event, state) : undefined;
    };
    reporter.guardRealm(environment.global, 'jest.');
    const results = await circus(globalConfig, config, environment, ...given);
    if (results.testExecError && !told.size) { reporter.crashed(results.testExecError); }
    reporter.done();
    return results;
};

function hear(event, state, { realm, tests, told }) {
    if (event.name === 'setup') {
        reporter.guard((realm[Symbol.for('$$jest-matchers-object')] || {}).matchers, 'expect.matchers');
    } else if (event.name === 'run_start') {
        collect(state.rootDescribeBlock, tests);
    } else if (event.name === 'test_start') {
        told.set(event.test, { at: reporter.now(), outcome: '' });
        reporter.started(titles(event.test));
    } else if (event.name === 'test_done') {
        const { errors, fn } = event.test;
        const isChanged = !tests.some((test) => test.test === event.test && test.fn === fn);
        tell(event.test, errors.length || isChanged ? 'failed' : 'passed', errors[0]);
    } else if (event.name === 'test_skip' || event.name === 'test_todo') {
        tell(event.test, 'skipped');
    } else if (event.name === 'run_finish') {
        // The tests that jest gave up, or that somebody took away.
        for (const { test } of tests) {
            if (!(told.get(test) || {}).outcome) { tell(test, 'error', (state.unhandledErrors || [])[0]); }
        }
    }

    function tell(test, outcome, error) {
        const start = told.get(test) || { at: reporter.now() };
        told.set(test, { ...start, outcome });
        const cause = Array.isArray(error) ? error[0] || error[1] : error;
        reporter.ended(titles(test), outcome, reporter.message(cause), Number(reporter.now() - start.at) / 1e9);
    }
}

function collect(block, tests) {
    for (const child of block.children || []) {
        if (child.type === 'describeBlock') { collect(child, tests); } else { tests.push({ test: child, fn: child.fn }); }
    }
}

function titles(test) {
    const names = [];
    for (let block = test; block && block.parent; block = block.parent) { names.unshift(block.name); }
    return names.join('\u0000');
}

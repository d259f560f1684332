// The runner of vitest that reports each test; vitest loads it in the process of the tests, before code of the tree.
import { pathToFileURL } from 'node:url';

const KEY = Symbol.for('repairgym.vitest');
const reporter = globalThis[KEY];
delete globalThis[KEY];
const load = (name) => import(pathToFileURL(`${reporter.modules}/${name}`).href);
const framework = await load('vitest/dist/runners.js');
const Base = framework.VitestTestRunner || framework.TestRunner;

export default class SignedRunner extends Base {
    #starts = new Map();
    #told = new Set();

    async onBeforeCollect(...given) {
        const expect = globalThis[Symbol.for('expect-global')];
        reporter.guard(expect && Object.getPrototypeOf(expect(0)), 'chai.Assertion.prototype');
        reporter.guard(expect, 'expect');
        reporter.guard((globalThis[Symbol.for('$$jest-matchers-object')] || {}).matchers, 'expect.matchers');
        reporter.guard(SignedRunner.prototype, 'vitest.Runner', true);
        reporter.guard(Base.prototype, 'vitest.BaseRunner', true);
        return super.onBeforeCollect?.(...given);
    }

    async onBeforeRunTask(test, ...given) {
        this.#starts.set(test, { at: reporter.now(), fails: test.fails });
        reporter.started(titles(test));
        return super.onBeforeRunTask?.(test, ...given);
    }

    async onAfterRunTask(test, ...given) {
        await super.onAfterRunTask?.(test, ...given);
        const start = this.#starts.get(test);
        const { state, errors } = test.result || {};
        const outcome = state === 'pass' && test.fails === start.fails ? 'passed' : test.mode === 'run' ? 'failed' : 'skipped';
        this.#told.add(test);
        reporter.ended(titles(test), outcome, reporter.message(errors && errors[0]), Number(reporter.now() - start.at) / 1e9);
    }

    async onAfterRunFiles(files, ...given) {
        await super.onAfterRunFiles?.(files, ...given);
        for (const file of files || []) {
            const error = firstError(file);
            if (error && !file.tasks.length) { reporter.crashed(error); }
        }
        for (const test of testsBelow(files)) {
            if (this.#told.has(test)) { continue; }
            const isSkipped = test.mode === 'skip' || test.mode === 'todo';
            reporter.ended(titles(test), isSkipped ? 'skipped' : 'error', reporter.message(errorAround(test)), 0);
        }
        reporter.done();
    }
}

function titles(test) {
    const names = [];
    for (let task = test; task && task.filepath === undefined; task = task.suite) { names.unshift(task.name); }
    return names.filter((name) => name !== '').join('\u0000');
}

function* testsBelow(tasks) {
    for (const task of tasks || []) {
        if (task.type === 'suite') { yield* testsBelow(task.tasks); } else { yield task; }
    }
}

function firstError(task) {
    return task && task.result && task.result.errors && task.result.errors[0];
}

function errorAround(test) {
    for (let task = test; task; task = task.suite || (task.file !== task ? task.file : undefined)) {
        if (firstError(task)) { return firstError(task); }
    }
    return undefined;
}

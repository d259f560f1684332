'use strict';
// Tests of node:test: its stream of events, through the reporter that node loads by --test-reporter.

const { Writable } = require('node:stream');

let current = null;

module.exports = (reporter) => {
    current = reporter;
    reporter.guard(require('node:test'), 'node:test');
    // Tests are asynchronous resources: hooks would get them.
    const hooks = require('node:async_hooks');
    for (const name of ['createHook', 'executionAsyncResource']) { reporter.wall(hooks, name, `async_hooks.${name}`); }
};

// The reporter itself: events of a test come after those of its suite's start and before its end.
class Events extends Writable {
    constructor() {
        super({ objectMode: true });
        this.titles = [];
        this.reporter = current;
        current = null; // node makes one; who makes another gets none
    }

    _write(event, _, callback) {
        const { data, type } = event;
        if (type === 'test:start') {
            this.titles.length = data.nesting;
            this.titles.push(data.name);
            this.reporter.started(this.titles.join('\u0000'));
        } else if (type === 'test:pass' || type === 'test:fail') {
            const titles = [...this.titles.slice(0, data.nesting), data.name].join('\u0000');
            const isSuite = data.details && data.details.type === 'suite';
            const isOfChildren = data.details && data.details.error && data.details.error.failureType === 'subtestsFailed';
            if (!isSuite && !isOfChildren) { this.tell(titles, type, data); }
        }
        callback();
    }

    tell(titles, type, data) {
        const error = data.details && data.details.error;
        const isSkipped = data.skip !== undefined || data.todo !== undefined;
        const outcome = isSkipped ? 'skipped' : type === 'test:pass' ? 'passed' : 'failed';
        const cause = error && (error.cause || error);
        this.reporter.ended(titles, outcome, this.reporter.message(cause),
            ((data.details && data.details.duration_ms) || 0) / 1000, cause);
    }

    _final(callback) {
        this.reporter.done();
        callback();
    }
}

module.exports.Events = Events;

'use strict';
// Tests of tape: its stream of objects, in the place of the TAP text.

module.exports = (reporter) => {
    const tape = require(`${reporter.modules}/tape`);
    const TapeTest = require(`${reporter.modules}/tape/lib/test`);
    reporter.guard(TapeTest.prototype, 'tape.Test');
    const open = new Map();
    const stream = tape.createStream({ objectMode: true });
    stream.on('data', (row) => {
        if (row.type === 'test') {
            const parent = row.parent === undefined ? undefined : open.get(row.parent);
            const titles = (parent ? `${parent.titles}\u0000` : '') + row.name;
            if (parent) { parent.hasChildren = true; }
            open.set(row.id, { titles, message: '', isBad: false, numOwn: 0, isSkipped: !!row.skip, start: reporter.now() });
            reporter.started(titles);
        } else if (row.type === 'assert') {
            const test = open.get(row.test);
            test.numOwn += 1;
            if (!row.ok && !row.todo && !row.skip) {
                test.message = test.message || told(row, reporter);
                test.error = test.error || row.error;
                test.isBad = true;
            }
        } else if (row.type === 'end') {
            const test = open.get(row.test);
            if (!test.hasChildren || test.numOwn) {
                const outcome = test.isBad ? 'failed' : test.isSkipped ? 'skipped' : 'passed';
                reporter.ended(test.titles, outcome, test.message, Number(reporter.now() - test.start) / 1e9,
                    test.error);
            }
        }
    });
    stream.on('end', () => reporter.done());
};

function told(row, reporter) {
    const name = row.name ? `${row.name}: ` : '';
    if (row.error && row.operator === 'error') { return name + reporter.message(row.error); }
    if (row.expected === undefined && row.actual === undefined) { return `${name}${row.operator}`; }
    return `${name}${row.operator}: ${reporter.values(row)}`;
}

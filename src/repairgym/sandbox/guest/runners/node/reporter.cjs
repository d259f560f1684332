'use strict';
// Reports the tests of one file, signed, to the process that started node (node_runner.py). Preloaded with --require.
//
// Reads its set-up (JSON) from standard input: key, descriptor, framework, folder of the packages, traced files. Writes
// lines "<HMAC-SHA-256> <JSON>" to the descriptor; the signature covers the number of the line. Guarantees: it is loaded
// before code of the tree and takes what it needs by then; the key lies in a closure, and the signature is computed by
// this file alone, so that replaced built-in functions can break a line, never sign one; ways to look into closures (the
// inspector, heap snapshots, bindings, workers) are closed, and a try is reported.

const { isMainThread } = require('node:worker_threads');

if (isMainThread) {
    const fs = require('node:fs');
    const path = require('node:path');
    const { apply, ownKeys } = Reflect;
    const { writeSync } = fs;
    const { charCodeAt } = String.prototype;
    const getDescriptor = Object.getOwnPropertyDescriptor;
    const now = process.hrtime.bigint;
    const MAX_VALUE_CHARS = 80;
    const setup = JSON.parse(fs.readFileSync(0, 'utf8'));
    process.execArgv = [];

    // --- signing ---------------------------------------------------------------------------------------------------

    const K = new Uint32Array(64);
    const START = new Uint32Array(8);
    for (let n = 2, count = 0; count < 64; n += 1) {
        let isPrime = true;
        for (let d = 2; d * d <= n; d += 1) { isPrime = isPrime && n % d !== 0; }
        if (isPrime) {
            if (count < 8) { START[count] = Math.floor((Math.sqrt(n) % 1) * 4294967296); }
            K[count] = Math.floor((Math.cbrt(n) % 1) * 4294967296);
            count += 1;
        }
    }
    const rotate = (x, n) => (x >>> n) | (x << (32 - n));

    function sha256(bytes, length) {
        const H = new Uint32Array(START);
        const W = new Uint32Array(64);
        const total = ((length + 8) >> 6) + 1;
        const data = new Uint8Array(total * 64);
        for (let i = 0; i < length; i += 1) { data[i] = bytes[i]; }
        data[length] = 0x80;
        const bits = length * 8;
        for (let i = 0; i < 4; i += 1) { data[total * 64 - 1 - i] = (bits >>> (8 * i)) & 255; }
        for (let block = 0; block < total; block += 1) {
            for (let i = 0; i < 16; i += 1) {
                const at = block * 64 + i * 4;
                W[i] = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3];
            }
            for (let i = 16; i < 64; i += 1) {
                const s0 = rotate(W[i - 15], 7) ^ rotate(W[i - 15], 18) ^ (W[i - 15] >>> 3);
                const s1 = rotate(W[i - 2], 17) ^ rotate(W[i - 2], 19) ^ (W[i - 2] >>> 10);
                W[i] = W[i - 16] + s0 + W[i - 7] + s1;
            }
            let a = H[0], b = H[1], c = H[2], d = H[3], e = H[4], f = H[5], g = H[6], h = H[7];
            for (let i = 0; i < 64; i += 1) {
                const one = (h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + W[i]) | 0;
                const two = ((rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
                h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
            }
            H[0] += a; H[1] += b; H[2] += c; H[3] += d; H[4] += e; H[5] += f; H[6] += g; H[7] += h;
        }
        const out = new Uint8Array(32);
        for (let i = 0; i < 32; i += 1) { out[i] = (H[i >> 2] >>> (24 - 8 * (i & 3))) & 255; }
        return out;
    }

    const HEX = '0123456789abcdef';
    const pads = [new Uint8Array(64), new Uint8Array(64)];
    for (let i = 0; i < 64; i += 1) {
        const byte = i < 32 ? parseInt(setup.key.slice(2 * i, 2 * i + 2), 16) : 0;
        pads[0][i] = byte ^ 0x36;
        pads[1][i] = byte ^ 0x5c;
    }
    const fd = setup.fd;
    delete setup.key;
    let number = 0;

    function signature(text) {
        const inner = new Uint8Array(64 + text.length);
        const outer = new Uint8Array(96);
        for (let i = 0; i < 64; i += 1) { inner[i] = pads[0][i]; outer[i] = pads[1][i]; }
        for (let i = 0; i < text.length; i += 1) { inner[64 + i] = apply(charCodeAt, text, [i]); }
        const first = sha256(inner, inner.length);
        for (let i = 0; i < 32; i += 1) { outer[64 + i] = first[i]; }
        const bytes = sha256(outer, 96);
        let hex = '';
        for (let i = 0; i < 16; i += 1) { hex += HEX[bytes[i] >> 4] + HEX[bytes[i] & 15]; }
        return hex;
    }

    function quote(value) {
        const text = typeof value === 'string' ? value : `${value}`;
        let out = '"';
        for (let i = 0; i < text.length && i < 2000; i += 1) {
            const code = apply(charCodeAt, text, [i]);
            if (code < 32 || code > 126 || code === 34 || code === 92) {
                out += `\\u${HEX[code >> 12]}${HEX[(code >> 8) & 15]}${HEX[(code >> 4) & 15]}${HEX[code & 15]}`;
            } else {
                out += text[i];
            }
        }
        return `${out}"`;
    }

    // `fields` is a text of JSON members: no object of ours meets a replaced `toJSON`.
    function send(fields) {
        const body = `{${fields}}`;
        const line = `${signature(`${number} ${body}`)} ${body}\n`;
        number += 1;
        for (let start = 0; start < line.length;) { start += writeSync(fd, start ? line.slice(start) : line); }
    }

    // --- what tests may not reach ----------------------------------------------------------------------------------

    const frame = /(?:^|[\s(])(?:file:\/\/)?((?!node:)[^()\s]+?):(\d+):\d+\)?$/;
    // The places (`path:line`) of the tree in the stack of an error, innermost first; mocha makes its paths relative.
    function places(error) {
        const found = [];
        for (const line of `${error && error.stack}`.split('\n')) {
            const [, file, number] = frame.exec(line) || ['', '', ''];
            const isOwn = file.startsWith(`${setup.testbed}/`);
            if (isOwn) { found.push(`${file.slice(setup.testbed.length + 1)}:${number}`); }
            if (file && !file.startsWith('/')) { found.push(`${file}:${number}`); }
        }
        return found;
    }
    const caller = () => (places(new Error(''))[0] || '').replace(/:\d+$/, '');
    const wall = (object, name, what) => {
        if (!object || !getDescriptor(object, name)) { return; }
        const closed = function closed() {
            send(`"reached_for":${quote(what)},"path":${quote(caller())}`);
            throw new Error(`${what} is not available in a test run`);
        };
        Object.defineProperty(object, name, { value: closed, writable: false, configurable: false, enumerable: true });
    };

    // --- coverage ----------------------------------------------------------------------------------------------------

    const { SourceMap } = require('node:module');
    const MAP = /\/\/[#@] sourceMappingURL=data:application\/json[^,]*;base64,([A-Za-z0-9+/=]+)/;
    function lineFinder(text) {
        const starts = [0];
        for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) { starts.push(at + 1); }
        const told = MAP.exec(text.slice(text.lastIndexOf('sourceMappingURL=') - 4));
        const map = told && new SourceMap(JSON.parse(Buffer.from(told[1], 'base64').toString()));
        return (offset) => {
            const line = starts.filter((start) => start <= offset).length - 1;
            if (!map) { return line + 1; }
            const { originalLine } = map.findEntry(line, offset - starts[line]);
            return originalLine === undefined ? 0 : originalLine + 1;
        };
    }

    const inspector = require('node:inspector');
    let executed = () => '';
    if (setup.traced.length) {
        const session = new inspector.Session();
        session.connect();
        session.post('Profiler.enable');
        session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
        const places = new Map();
        // Returns a function from an offset in a script to a line of its file, by the script's source map if it has one.
        const linesOf = (script) => {
            if (!places.has(script.scriptId)) {
                let text = '';
                session.post('Debugger.getScriptSource', { scriptId: script.scriptId }, (error, told) => {
                    text = error ? '' : told.scriptSource;
                });
                places.set(script.scriptId, lineFinder(text));
            }
            return places.get(script.scriptId);
        };
        const traced = new Map(setup.traced.map((name) => [`file://${setup.testbed}/${name}`, name]));
        executed = () => {
            const ids = new Set();
            session.post('Debugger.enable');
            session.post('Profiler.takePreciseCoverage', (error, taken) => {
                for (const script of error ? [] : taken.result) {
                    const name = traced.get(script.url) || traced.get(`file://${script.url}`);
                    for (const called of name ? script.functions : []) {
                        const { startOffset, count } = called.ranges[0];
                        const isModule = startOffset === 0 && called.functionName === '';
                        if (count && !isModule) {
                            const line = linesOf(script)(startOffset);
                            if (line) { ids.add(`${name}::${line}`); }
                        }
                    }
                }
            });
            session.post('Debugger.disable');
            return [...ids].sort().join('\n');
        };
    }

    // --- results -----------------------------------------------------------------------------------------------------

    // Functions of the framework and of `assert` that decide a test: a run in which one was replaced proves nothing.
    // Of a closed one, a property that joins counts, too.
    const guarded = [];
    const CLASSES = ['Object', 'Array', 'String', 'Number', 'Boolean', 'Symbol', 'BigInt', 'Function', 'Map', 'Set', 'WeakMap',
        'WeakSet', 'Promise', 'RegExp', 'Error', 'TypeError', 'Proxy', 'Reflect', 'JSON', 'Math', 'ArrayBuffer', 'Uint8Array'];
    function guard(object, name, isClosed = false) {
        if (!object) { return; }
        const known = new Map();
        for (const key of ownKeys(object)) {
            const own = meaning(object, key);
            if (own && key !== 'constructor' && key !== 'prepareStackTrace') { known.set(key, own); }
        }
        guarded.push({ object, name, known, numKeys: isClosed ? ownKeys(object).length : -1 });
    }
    // The function or object of a property, or its getter.
    function meaning(object, key) {
        const told = getDescriptor(object, key);
        if (!told || told.get) { return told && told.get; }
        return typeof told.value === 'function' || typeof told.value === 'object' ? told.value : undefined;
    }
    // The built-in classes and objects of a realm, through which a framework hands its results on.
    function guardRealm(realm, prefix) {
        for (const name of CLASSES) {
            const kind = meaning(realm, name);
            guard(kind, prefix + name);
            guard(kind && kind.prototype, `${prefix}${name}.prototype`);
        }
        guardProperties(realm, CLASSES, `${prefix}globalThis`);
    }
    function guardProperties(object, names, name) {
        const known = new Map();
        for (let i = 0; i < names.length; i += 1) {
            const own = meaning(object, names[i]);
            if (own) { known.set(names[i], own); }
        }
        guarded.push({ object, name, known, numKeys: -1 });
    }
    const forEachKnown = Map.prototype.forEach;
    const toText = String;
    function replaced() {
        let first = '';
        for (let i = 0; i < guarded.length; i += 1) {
            const { object, name, known, numKeys } = guarded[i];
            apply(forEachKnown, known, [(value, key) => {
                if (!first && meaning(object, key) !== value) { first = `${name}.${toText(key)}`; }
            }]);
            if (!first && numKeys >= 0 && ownKeys(object).length !== numKeys) { first = `${name}: a property that joined`; }
        }
        return first;
    }

    // node:test tells of its tests after they ran: what they executed is known for all of them together only.
    const isToldLater = setup.framework === 'node_test';
    const reporter = {
        framework: setup.framework,
        modules: setup.modules,
        scratch: setup.scratch,
        testbed: setup.testbed,
        guard,
        guardProperties,
        guardRealm,
        now,
        wall,
        started(titles) { send(`"started":${quote(titles)}`); },
        // `titles`: those of the test and of the suites around it, joined by U+0000.
        // `error`: whose stack tells the line of the test; none with some frameworks.
        ended(titles, outcome, message, durationS, error) {
            const changed = replaced();
            const functions = isToldLater ? '' : executed();
            send(`"test":${quote(titles)},"outcome":"${outcome}","message":${quote(message)},"duration_s":${durationS}`
                + `${error ? `,"places":${quote(reporter.places(error))}` : ''}`
                + `${changed ? `,"replaced":${quote(changed)}` : ''}${functions ? `,"functions":${quoteLong(functions)}` : ''}`);
        },
        done() {
            const functions = isToldLater ? executed() : '';
            send(`"done":true${functions ? `,"functions":${quoteLong(functions)}` : ''}`);
        },
        crashed(error) { send(`"crash":${quote(reporter.message(error))},"places":${quote(reporter.places(error))}`); },
        places(error) { return places(error).slice(0, 8).join('\n'); },
        message(error) {
            if (!error) { return ''; }
            const text = error.message === undefined ? `${error}` : `${error.name || 'Error'}: ${error.message}`;
            const known = Object(error.matcherResult || error);
            if (!text.includes('\n') || !('expected' in known && 'actual' in known)) { return text.slice(0, 1000); }
            // Only the first line of a message is kept, and a generated one has its values below.
            if (text.includes('evaluated to a falsy value')) { return text.replace(/\s+/g, ' ').slice(0, 1000); }
            return `${text.slice(0, text.indexOf('\n'))} ${reporter.values(known)}`;
        },
        values({ expected, actual }) { return `expected ${shown(expected)}, got ${shown(actual)}`; },
    };
    function shown(value) {
        try {
            const options = { depth: 3, breakLength: Infinity, compact: true };
            return require('node:util').inspect(value, options).slice(0, MAX_VALUE_CHARS);
        } catch (error) {
            return typeof value;
        }
    }
    function quoteLong(text) {
        const parts = [];
        for (let at = 0; at < text.length; at += 1900) { parts.push(quote(text.slice(at, at + 1900)).slice(1, -1)); }
        return `"${parts.join('')}"`;
    }

    process.on('uncaughtExceptionMonitor', (error) => reporter.crashed(error));
    process.on('SIGUSR1', () => {}); // its default starts the inspector
    guardRealm(globalThis, '');
    guard(require('node:events').prototype, 'EventEmitter.prototype');
    const streams = require('node:stream');
    for (const name of ['Stream', 'Readable', 'Writable', 'Transform', 'Duplex']) {
        guard(streams[name].prototype, `stream.${name}.prototype`);
    }
    const util = require('node:util');
    for (const key of ownKeys(util)) { void util[key]; } // some are loaded when first used
    guard(util, 'util');
    guard(require('node:assert'), 'assert');
    guard(require('node:assert').strict, 'assert.strict');
    require(`./${setup.framework}.cjs`)(reporter);
    if (setup.framework !== 'vitest' && setup.framework !== 'jest') {
        try {
            const chai = require(`${setup.modules}/chai`);
            guard(chai.Assertion.prototype, 'chai.Assertion.prototype');
            guard(chai.assert, 'chai.assert');
        } catch { /* there is none, or it is a module that node loads by import only */ }
    }

    for (const name of ['Session', 'open', 'url', 'waitForDebugger']) { wall(inspector, name, `inspector.${name}`); }
    const v8 = require('node:v8');
    for (const name of ['getHeapSnapshot', 'writeHeapSnapshot', 'setFlagsFromString']) { wall(v8, name, `v8.${name}`); }
    for (const name of ['binding', '_linkedBinding', '_debugProcess']) { wall(process, name, `process.${name}`); }
    wall(require('node:worker_threads'), 'Worker', 'worker_threads.Worker');
    try { wall(require('node:inspector/promises'), 'Session', 'inspector.Session'); } catch { /* not before node 19 */ }
    // The count of pages lies in a file of /proc that a fork may not read.
    const { memoryUsage } = process;
    process.memoryUsage = function usage() {
        try {
            return apply(memoryUsage, process, []);
        } catch {
            const heap = v8.getHeapStatistics();
            return {
                rss: heap.total_physical_size, heapTotal: heap.total_heap_size, heapUsed: heap.used_heap_size,
                external: heap.external_memory, arrayBuffers: 0,
            };
        }
    };
    process.memoryUsage.rss = () => process.memoryUsage().rss;
    // Programs in machine code could read the key; those of the packages may.
    const { dlopen } = process;
    const { realpathSync } = fs;
    const packages = `${fs.existsSync(setup.modules) ? realpathSync(setup.modules) : setup.modules}/`;
    process.dlopen = function load(module, file, ...flags) {
        const real = realpathSync(file);
        for (let i = 0; i < packages.length; i += 1) {
            if (real[i] !== packages[i]) {
                send(`"reached_for":"process.dlopen","path":${quote(caller())}`);
                throw new Error('process.dlopen is not available in a test run');
            }
        }
        return apply(dlopen, process, [module, real, ...flags]);
    };
    Object.defineProperty(process, 'dlopen', { writable: false, configurable: false });
    require('node:module').syncBuiltinESMExports();
}

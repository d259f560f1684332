'use strict';
// Packs a package of npm, installs it beside its dependencies, loads its entry points, and runs its tests there.
//
// `expected.json` beside this file names the files of the release with their digests, the entry points and what they
// give, the test files that pass, and what the release itself lacks. Guarantees:
//
// - No code of a submission runs: before anything of the package runs, its files are compared with those of the release;
//   the settings are read as data.
// - A dependency is the newest of the installed versions that package.json allows; one that it does not name is missing.
// - With the argument `describe` it prints what the release gives, and tests nothing.

const assert = require('node:assert');
const { spawnSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const { createRequire, isBuiltin } = require('node:module');
const os = require('node:os');
const path = require('node:path');
const test = require('node:test');

const TREE = path.dirname(__dirname);
const SETTINGS = 'package.json';
const MODULES = fs.existsSync('/node_modules') ? '/node_modules' : process.env.NODE_PATH;
const semver = require(path.join(MODULES, 'repairgym-semver'));
const isDescribing = process.argv[2] === 'describe';
const EXPECTED = JSON.parse(fs.readFileSync(path.join(__dirname, 'expected.json'), 'utf8'));
const NAME = /^(@[\w~-][\w.~-]*\/)?[a-z0-9~-][a-z0-9._~-]*$/;
const CODE = /\.[cm]?js$/;
const NOT_PACKED = new Set([path.basename(__dirname), 'node_modules', '.git', '.dist', 'package-lock.json', '.npmrc']);
const ALWAYS_PACKED = /^(package\.json|(readme|copying|licen[cs]e)(\..*)?)$/i;
const SPECIFIER = /(?:\brequire\(\s*|\bfrom\s+|\bimport\s*\(?\s*)(['"])([^'"\n]+)\1/g;
const TIMEOUT_MS = 60000;

function once(make) {
    let outcome;
    return () => {
        if (!outcome) {
            try { outcome = { value: make() }; } catch (error) { outcome = { error }; }
        }
        if (outcome.error) { throw outcome.error; }
        return outcome.value;
    };
}

const scratch = once(() => {
    const place = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), 'package-')));
    process.on('exit', () => fs.rmSync(place, { recursive: true, force: true }));
    return place;
});

// --- settings and files -----------------------------------------------------------------------------------------------

const settings = once(() => {
    const text = fs.readFileSync(path.join(TREE, SETTINGS), 'utf8');
    let told;
    try {
        told = JSON.parse(text);
    } catch (error) {
        assert.fail(`package.json is no JSON: ${error.message.split('\n')[0]}`);
    }
    assert.ok(NAME.test(told.name || ''), `Invalid name: ${JSON.stringify(told.name)}`);
    assert.ok(semver.valid(told.version), `Invalid version: ${JSON.stringify(told.version)}`);
    const identity = `${told.name}@${told.version}`;
    assert.ok(isDescribing || identity === EXPECTED.identity, `this is ${identity}, not ${EXPECTED.identity}`);
    return told;
});

function walk(folder, prefix = '') {
    return fs.readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
        const name = prefix + entry.name;
        if (!prefix && NOT_PACKED.has(entry.name)) { return []; }
        return entry.isDirectory() ? walk(path.join(folder, entry.name), `${name}/`) : entry.isFile() ? [name] : [];
    }).sort();
}

function matcher(pattern) {
    const plain = pattern.replace(/^!?\.?\/+/, '').replace(/^!/, '').replace(/\/+$/, '');
    const text = plain.replace(/[.+^${}()|[\]\\]/g, '\\$&').replace(/\*\*\/?|\*|\?/g, (star) => (
        { '**/': '(.*/)?', '**': '.*', '*': '[^/]*', '?': '[^/]' }[star]
    ));
    return new RegExp(`^${plain === '.' ? '' : text}${plain === '.' ? '' : '(/|$)'}`);
}

// Names of the files that npm packs: those of `files`, where it is there, and those that always are.
function packed({ files, main, bin }) {
    const names = walk(TREE);
    if (!Array.isArray(files)) { return names; }
    const own = [main, ...(typeof bin === 'string' ? [bin] : Object.values(bin || {}))].filter(Boolean);
    const kept = own.map((name) => path.posix.normalize(name));
    return names.filter((name) => ALWAYS_PACKED.test(name) || kept.includes(name)
        || files.reduce((isIn, pattern) => (matcher(pattern).test(name) ? !pattern.startsWith('!') : isIn), false));
}

const digest = (name) => createHash('sha256').update(fs.readFileSync(path.join(TREE, name))).digest('hex');
const isSettings = (name) => name === SETTINGS || name === EXPECTED.tsconfig;

// The files of the package: only those of the release, as they are there.
const content = once(() => {
    const names = packed(settings());
    if (isDescribing) { return names; }
    const changed = Object.keys(EXPECTED.files)
        .find((name) => !isSettings(name) && fs.existsSync(path.join(TREE, name)) && digest(name) !== EXPECTED.files[name]);
    assert.ok(!changed, `${changed} is not the file of the release`);
    return names.filter((name) => name in EXPECTED.files);
});

// --- installation -----------------------------------------------------------------------------------------------------

// Name of a package -> its installed versions with their folders; another version has a folder of another name.
const installed = once(() => {
    const found = new Map();
    const folders = fs.readdirSync(MODULES).filter((name) => !name.startsWith('.')).flatMap((name) => (
        name.startsWith('@') ? fs.readdirSync(path.join(MODULES, name)).map((own) => `${name}/${own}`) : [name]
    ));
    for (const folder of folders) {
        const { name, version } = JSON.parse(fs.readFileSync(path.join(MODULES, folder, SETTINGS), 'utf8'));
        if (!found.has(name)) { found.set(name, new Map()); }
        found.get(name).set(version, path.join(MODULES, folder));
    }
    return found;
});

const sections = ({ dependencies, optionalDependencies, peerDependencies, devDependencies }, isWhole) => ({
    ...(isWhole ? devDependencies : {}), ...peerDependencies, ...optionalDependencies, ...dependencies,
});

// Name -> folder of each dependency; `unmet` gets the names without one.
function resolved(isWhole, unmet) {
    const links = new Map();
    for (const [name, range] of Object.entries(sections(settings(), isWhole))) {
        const versions = installed().get(name) || new Map();
        const version = range === 'latest' ? semver.rsort([...versions.keys()])[0]
            : semver.maxSatisfying([...versions.keys()], range);
        if (version) {
            links.set(name, versions.get(version));
        } else {
            const known = [...versions.keys()].join(', ');
            unmet.set(name, known ? `No matching version found for ${name}@${range} (there is ${known})`
                : `'${name}@${range}' is not in this registry`);
        }
    }
    return links;
}

function checkInstallable(isWhole) {
    const { engines } = settings();
    const wanted = engines && engines.node;
    assert.ok(!wanted || semver.satisfies(process.version, wanted),
        `Unsupported engine: wanted node ${wanted}, current ${process.version}`);
    const unmet = new Map();
    const links = resolved(isWhole, unmet);
    for (const [name, message] of unmet) {
        assert.ok(isDescribing || EXPECTED.unmet.includes(name), message);
    }
    return links;
}

// Copies the package below a folder of the scratch; returns its place.
function installedBelow(folder, place, isWhole) {
    const names = content();
    const links = checkInstallable(isWhole);
    const root = path.join(scratch(), folder);
    for (const name of names) {
        fs.mkdirSync(path.dirname(path.join(root, place, name)), { recursive: true });
        fs.copyFileSync(path.join(TREE, name), path.join(root, place, name));
    }
    for (const [name, target] of links) {
        const link = path.join(root, 'node_modules', name);
        fs.mkdirSync(path.dirname(link), { recursive: true });
        fs.symlinkSync(target, link);
    }
    return path.join(root, place);
}

const consumed = once(() => installedBelow('app', `node_modules/${settings().name}`, false));
const suite = once(() => installedBelow('work', 'package', true));

const flags = once(() => {
    const flag = '--disable-wasm-trap-handler';
    return spawnSync(process.execPath, ['--help'], { encoding: 'utf8' }).stdout.includes(flag) ? [flag] : [];
});

function run(args, cwd) {
    const environment = { PATH: process.env.PATH, HOME: scratch(), TMPDIR: scratch(), CI: '1', NO_COLOR: '1' };
    if (MODULES !== '/node_modules') { environment.NODE_PATH = MODULES; }
    const done = spawnSync(process.execPath, [...flags(), ...args], {
        cwd, env: environment, encoding: 'utf8', timeout: TIMEOUT_MS, maxBuffer: 1 << 26, stdio: ['ignore', 'pipe', 'pipe'],
    });
    const lines = `${done.stderr}\n${done.stdout}`.split(`${cwd}/`).join('').split(scratch()).join('').split('\n');
    const told = [/Error\b.*: |error TS\d+/, /^\s*not ok|Cannot find|^\s+\d+\) /, /\S/].map((kind) => (
        lines.find((line) => kind.test(line) && !/Warning/.test(line))
    ));
    const message = (told.find(Boolean) || `ended with status ${done.status}`).trim().slice(0, 300);
    return { isPassed: done.status === 0, stdout: done.stdout, message };
}

// --- what the package gives -------------------------------------------------------------------------------------------

function specifiers() {
    const { name, exports } = settings();
    const isMap = exports && typeof exports === 'object' && !Array.isArray(exports);
    const paths = isMap ? Object.keys(exports).filter((key) => key.startsWith('.') && !key.includes('*')) : [];
    return (paths.length ? paths : ['.']).map((key) => path.posix.join(name, key));
}

function load(how, specifier) {
    const file = path.join(path.dirname(consumed()), '..', `load.${how === 'require' ? 'cjs' : 'mjs'}`);
    const code = how === 'require' ? `const loaded = require(${JSON.stringify(specifier)});`
        : `const loaded = await import(${JSON.stringify(specifier)});`;
    fs.writeFileSync(file, `${code}\nconsole.log('\\n' + JSON.stringify([typeof loaded, Object.keys(loaded).sort()]));\n`);
    return run([file], path.dirname(file));
}

function checkLoaded(how) {
    for (const [specifier, wanted] of Object.entries(EXPECTED.entries[how])) {
        const { isPassed, stdout, message } = load(how, specifier);
        assert.ok(isPassed, message);
        const given = stdout.trim().split('\n').pop();
        assert.strictEqual(given, wanted, `${specifier} gives ${given}, not what the release gives`);
    }
}

// Paths that package.json names, with the names of their fields.
function namedPaths() {
    const { main, module, types, typings, bin, exports, browser } = settings();
    const found = [];
    const add = (field, value) => {
        if (typeof value === 'string' && !value.includes('*')) { found.push([field, value]); }
        if (value && typeof value === 'object') {
            for (const [key, inner] of Object.entries(value)) { add(`${field}[${JSON.stringify(key)}]`, inner); }
        }
    };
    for (const [field, value] of Object.entries({ main, module, types, typings, bin, exports })) { add(field, value); }
    if (typeof browser === 'string') { add('browser', browser); }
    return found;
}

function missingPath() {
    const names = new Set(content());
    const isThere = (target) => {
        const name = path.posix.normalize(target).replace(/\/+$/, '');
        return ['', '.js', '.json', '.node', '/index.js'].some((ending) => names.has(name + ending)) || name === '.';
    };
    const missing = namedPaths().find(([, target]) => !isThere(target));
    return missing ? `package.json: ${missing[0]} is ${missing[1]}, but the package has no such file` : '';
}

const plain = (text) => text.replace(/\/\*[^]*?\*\/|(^|[^:'"`])\/\/[^\n]*/g, '$1');

// Packages that the files need, themselves or through others: name -> one of the files.
function needed(names) {
    const found = new Map();
    const seen = new Set(names);
    for (const name of seen) {
        const text = plain(fs.readFileSync(path.join(TREE, name), 'utf8'));
        for (const [, , specifier] of CODE.test(name) ? text.matchAll(SPECIFIER) : []) {
            if (specifier.startsWith('.')) {
                const target = path.posix.join(path.posix.dirname(name), specifier);
                const file = ['', '.js', '.cjs', '.mjs', '/index.js'].map((ending) => target + ending)
                    .find((own) => own in EXPECTED.files || (isDescribing && content().includes(own)));
                if (file) { seen.add(file); }
            } else if (/^[@a-z]/.test(specifier) && !isBuiltin(specifier)) {
                const parts = specifier.split('/');
                const own = parts.slice(0, specifier.startsWith('@') ? 2 : 1).join('/');
                if (!found.has(own)) { found.set(own, name); }
            }
        }
    }
    return found;
}

function undeclared(names, isWhole) {
    const known = { ...sections(settings(), isWhole), [settings().name]: '' };
    return [...needed(names)].filter(([name]) => !(name in known));
}

// Files of the package that its entry points are.
function entryFiles() {
    const place = consumed();
    const from = createRequire(path.join(path.dirname(place), 'of-a-user.js'));
    return Object.keys(EXPECTED.entries.require).flatMap((specifier) => {
        try { return [path.relative(place, from.resolve(specifier))]; } catch { return []; }
    }).filter((name) => name in EXPECTED.files);
}

function runTests(file) {
    const own = (name, ...places) => places.map((place) => path.join(MODULES, name, place)).find(fs.existsSync);
    const loader = path.join(MODULES, 'tsx', 'dist', 'loader.mjs');
    const typed = /\.[cm]?tsx?$/.test(file) && fs.existsSync(loader) ? ['--import', loader] : [];
    const args = {
        tape: [...typed, file],
        node_test: [...typed, file],
        mocha: [...typed, own('mocha', 'bin/mocha.js', 'bin/mocha', 'bin/_mocha'), '--exit', file],
        vitest: [own('vitest', 'vitest.mjs'), 'run', file],
        jest: [own('jest', 'bin/jest.js'), '--ci', '--runTestsByPath', file],
    }[EXPECTED.runner];
    return run(args, suite());
}

const compileTypes = () => run([path.join(MODULES, 'typescript', 'bin', 'tsc'), '--noEmit', '-p', EXPECTED.tsconfig], suite());

// --- the tests --------------------------------------------------------------------------------------------------------

function describe() {
    const entries = { require: {}, import: {} };
    for (const how of Object.keys(entries)) {
        for (const specifier of specifiers()) {
            const { isPassed, stdout } = load(how, specifier);
            if (isPassed) { entries[how][specifier] = stdout.trim().split('\n').pop(); }
        }
    }
    EXPECTED.entries = entries;
    const unmet = new Map();
    resolved(true, unmet);
    return {
        identity: `${settings().name}@${settings().version}`,
        files: Object.fromEntries(content().map((name) => [name, digest(name)])),
        entries,
        unmet: [...unmet.keys()],
        tests: EXPECTED.tests.filter((file) => runTests(file).isPassed),
        tsconfig: EXPECTED.tsconfig && compileTypes().isPassed ? EXPECTED.tsconfig : '',
        missing: missingPath(),
    };
}

if (isDescribing) {
    const told = describe();
    EXPECTED.files = told.files;
    EXPECTED.entries = told.entries;
    const parts = [[entryFiles(), false], [told.tests, true]];
    told.undeclared = parts.flatMap(([names, isWhole]) => undeclared(names, isWhole).map(([name]) => name));
    console.log(`\nfound ${JSON.stringify(told)}`);
    process.exit(0);
}

test('package.json can be read', () => {
    settings();
});

test('its dependencies can be installed', () => {
    checkInstallable(true);
});

test('it holds the files of the release', () => {
    const names = new Set(content());
    const lacking = Object.keys(EXPECTED.files).find((name) => !names.has(name));
    assert.ok(!lacking, `the packed package lacks ${lacking}`);
});

test('the paths of package.json exist', () => {
    const message = missingPath();
    assert.ok(!message || message === EXPECTED.missing, message);
});

test('what its code needs is a dependency', () => {
    const [first] = undeclared(entryFiles(), false).filter(([name]) => !EXPECTED.undeclared.includes(name));
    assert.ok(!first, first && `Cannot find module '${first[0]}', which ${first[1]} needs: it is no dependency`);
});

test('what its tests need is declared', () => {
    const [first] = undeclared(EXPECTED.tests, true).filter(([name]) => !EXPECTED.undeclared.includes(name));
    assert.ok(!first, first && `Cannot find module '${first[0]}', which ${first[1]} needs: package.json does not name it`);
});

test('it can be loaded by require', { skip: !Object.keys(EXPECTED.entries.require).length }, () => {
    checkLoaded('require');
});

test('it can be loaded by import', { skip: !Object.keys(EXPECTED.entries.import).length }, () => {
    checkLoaded('import');
});

test('its types compile', { skip: !EXPECTED.tsconfig }, () => {
    const { isPassed, message } = compileTypes();
    assert.ok(isPassed, message);
});

test('its tests pass', { skip: !EXPECTED.tests.length }, () => {
    for (const file of EXPECTED.tests) {
        const { isPassed, message } = runTests(file);
        assert.ok(isPassed, `${file}: ${message}`);
    }
});

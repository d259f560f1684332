// Runs one test file in vitest: this process transforms files, a fork of it runs the tests.
//
// Reads the set-up (JSON) from standard input. Runs no code of the tree: no configuration file of vite or vitest is
// loaded. The fork gets the reporter before anything else, the set-up on its standard input, and the channel of records.
import child_process from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { syncBuiltinESMExports } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';

const FOLDER = path.dirname(fileURLToPath(import.meta.url));
const FORK_FD = 4;
const setup = JSON.parse(fs.readFileSync(0, 'utf8'));
const [file] = process.argv.slice(2);

const { fork } = child_process;
child_process.fork = (program, argv, options) => {
    const started = fork(program, argv, {
        ...options,
        execArgv: [...process.execArgv, '--require', path.join(FOLDER, 'reporter.cjs'), ...(options.execArgv || [])],
        stdio: ['pipe', 'inherit', 'inherit', 'ipc', setup.fd],
    });
    started.stdin.on('error', () => {});
    started.stdin.end(JSON.stringify({ ...setup, fd: FORK_FD }));
    return started;
};
syncBuiltinESMExports();

const { startVitest } = await import(pathToFileURL(`${setup.modules}/vitest/dist/node.js`).href);
// Vitest 4 has no options of pools any more; a single worker is one fork there.
const { version } = JSON.parse(fs.readFileSync(`${setup.modules}/vitest/package.json`, 'utf8'));
const forks = { singleFork: true, isolate: true, minForks: 1, maxForks: 1 };
const pools = parseInt(version, 10) < 4 ? { poolOptions: { forks }, minWorkers: 1 } : {};
await startVitest('test', [path.join(setup.testbed, file)], {
    root: setup.testbed, config: false, watch: false, run: true, update: false, globals: true, css: false, cache: false,
    pool: 'forks', ...pools, maxWorkers: 1, fileParallelism: false,
    include: ['**/*'], exclude: [], includeSource: [], reporters: [{}], coverage: { enabled: false }, typecheck: { enabled: false },
    runner: path.join(FOLDER, 'vitest_runner.mjs'), testTimeout: 0, hookTimeout: 0, teardownTimeout: 1000,
}, {
    configFile: false, cacheDir: path.join(setup.scratch, 'vite'), envDir: setup.scratch, css: { postcss: { plugins: [] } },
    logLevel: 'error', clearScreen: false, server: { watch: null, hmr: false },
});
process.exit(); // with the status that vitest has set; what still runs is ended from outside

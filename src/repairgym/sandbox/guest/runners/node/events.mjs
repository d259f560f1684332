// The reporter of node:test as a module, because node wants its class as the default export.
import { createRequire } from 'node:module';

const { Events } = createRequire(import.meta.url)('./node_test.cjs');

export default Events;

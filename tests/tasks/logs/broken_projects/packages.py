"""Broken installations of npm, pnpm and yarn."""

import json

from . import Project


def manifest(**values: object) -> str:
    """Return a package.json with ``values``."""
    return json.dumps({"name": "shop", "version": "1.0.0", "private": True, **values}, indent=2) + "\n"


def deps(**names: str) -> dict[str, str]:
    """Return files with a package.json that asks for ``names``."""
    return {"package.json": manifest(dependencies={name.replace("_", "-"): spec for name, spec in names.items()})}


def scripts(**commands: str) -> str:
    """Return a package.json with ``commands``."""
    return manifest(scripts=commands)


ABSENT = "no-such-package-zzqx"
LOCAL = {"a/package.json": json.dumps({"name": "a", "version": "1.0.0", "peerDependencies": {"is-number": "6.0.0"}})}
ENGINE = {"a/package.json": json.dumps({"name": "a", "version": "1.0.0", "engines": {"node": ">=99"}})}
BROKEN_JSON = '{\n  "name": "shop",\n  "version": "1.0.0"\n  "private": true\n}\n'
CONFLICT = {"package.json": manifest(dependencies={"a": "file:./a", "is-number": "7.0.0"}), **LOCAL}
STRICT = {".npmrc": "engine-strict=true\nstrict-peer-dependencies=true\n"}
NPM_LOCK = "npm install --package-lock-only --silent"
OTHER = "node -e \"const p=require('./package.json');p.dependencies['is-odd']='3.0.1';"
OTHER += "require('fs').writeFileSync('package.json',JSON.stringify(p))\""
HASH = "sed -i 's/sha512-[A-Za-z0-9+/=]*/sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==/' "
POST = {"post.js": "const config = require('./config');\nconfig.load();\n", "config.js": "module.exports = {};\n"}


def npm(name, command, files, error_class, message, place="", before=""):
    return Project("npm", name, command, files, error_class, message, place, before)


def pnpm(name, command, files, error_class, message, place="", before=""):
    return Project("pnpm", name, command, files, error_class, message, place, before)


def yarn(name, command, files, error_class, message, place="", before=""):
    return Project("yarn", name, command, files, error_class, message, place, before)


def berry(name, command, files, error_class, message, place="", before=""):
    return Project("yarn", f"berry_{name}", command, {"yarn.lock": "", **files}, error_class, message, place, before)


NPM = (
    npm(
        "etarget",
        "npm install",
        deps(is_number="^99.0.0"),
        "dependency",
        "No matching version found for is-number@^99.0.0",
    ),
    npm(
        "etarget_exact",
        "npm install",
        deps(is_odd="77.1.2"),
        "dependency",
        "No matching version found for is-odd@77.1.2",
    ),
    npm("e404", "npm install", {"package.json": manifest(dependencies={ABSENT: "1.0.0"})}, "dependency", f"{ABSENT}"),
    npm(
        "e404_scope",
        "npm install",
        {"package.json": manifest(dependencies={"@zzqx-none/left": "1"})},
        "dependency",
        "left",
    ),
    npm("eresolve", "npm install", CONFLICT, "dependency", 'peer is-number@"6.0.0" from a@1.0.0'),
    npm(
        "eresolve_react",
        "npm install --package-lock-only",
        {"package.json": manifest(dependencies={"react": "17.0.2", "react-dom": "18.2.0"})},
        "dependency",
        'peer react@"^18.2.0" from react-dom@18.2.0',
    ),
    npm(
        "ejsonparse",
        "npm install",
        {"package.json": BROKEN_JSON},
        "configuration",
        "Expected ',' or '}' after property value",
        "package.json",
    ),
    npm(
        "ejsonparse_comma",
        "npm run build",
        {"package.json": '{\n  "name": "shop",\n}\n'},
        "configuration",
        "Expected double-quoted property name",
        "package.json",
    ),
    npm(
        "ci_no_lock",
        "npm ci",
        deps(is_number="7.0.0"),
        "dependency",
        "The `npm ci` command can only install with an existing package-lock.json",
    ),
    npm(
        "ci_out_of_sync",
        "npm ci",
        deps(is_number="7.0.0"),
        "dependency",
        "Missing: is-odd@3.0.1 from lock file",
        before=f"{NPM_LOCK}; {OTHER}",
    ),
    npm(
        "missing_script",
        "npm run build",
        {"package.json": scripts(tset="true")},
        "configuration",
        'Missing script: "build"',
    ),
    npm("missing_test", "npm test", {"package.json": scripts(build="true")}, "configuration", 'Missing script: "test"'),
    npm(
        "engine",
        "npm install",
        {"package.json": manifest(dependencies={"a": "file:./a"}, engines={"node": ">=99"}), **ENGINE, **STRICT},
        "version",
        "Not compatible with your version of node/npm",
    ),
    npm(
        "postinstall",
        "npm install",
        {"package.json": scripts(postinstall="node post.js"), **POST},
        "other",
        "TypeError: config.load is not a function",
        "post.js:2",
    ),
    npm(
        "integrity",
        "npm ci",
        deps(is_number="7.0.0"),
        "dependency",
        "Integrity checksum failed when using sha512",
        before=f"{NPM_LOCK}; {HASH} package-lock.json",
    ),
    npm(
        "override",
        "npm install",
        {"package.json": manifest(dependencies={"is-number": "7.0.0"}, overrides={"is-number": "6.0.0"})},
        "dependency",
        "Override for is-number@7.0.0 conflicts with direct dependency",
    ),
    npm("protocol", "npm install", deps(left="foo:bar"), "dependency", 'Unsupported URL Type "foo:": foo:bar'),
    npm(
        "bad_name",
        "npm install",
        {"package.json": manifest(dependencies={"Bad Name!": "1"})},
        "configuration",
        'Invalid package name "Bad Name!',
    ),
    npm("bad_tag", "npm install", deps(is_number="not a version!"), "dependency", 'Invalid tag name "not a version!"'),
    npm(
        "no_manifest",
        "npm run build",
        {"README": "none\n"},
        "environment",
        "Could not read package.json",
        "package.json",
    ),
    npm(
        "not_installed",
        "npm run build",
        {"package.json": scripts(build="tscx --noEmit")},
        "environment",
        "tscx: not found",
    ),
    npm(
        "workspace",
        "npm install",
        {"package.json": manifest(dependencies={"a": "workspace:*"})},
        "dependency",
        'Unsupported URL Type "workspace:": workspace:*',
    ),
    npm(
        "chain",
        "npm run all",
        {
            "package.json": scripts(all="npm run one", one="node post.js"),
            **POST,
            "config.js": "module.exports = null;\n",
        },
        "other",
        "TypeError: Cannot read properties of null (reading 'load')",
        "post.js:2",
    ),
)
PNPM = (
    pnpm(
        "no_version",
        "pnpm install",
        deps(is_number="^99.0.0"),
        "dependency",
        "No matching version found for is-number@^99.0.0",
    ),
    pnpm("e404", "pnpm install", {"package.json": manifest(dependencies={ABSENT: "1.0.0"})}, "dependency", ABSENT),
    pnpm(
        "frozen",
        "pnpm install --frozen-lockfile",
        deps(is_number="7.0.0"),
        "dependency",
        'Cannot install with "frozen-lockfile" because pnpm-lock.yaml is not up to date',
        before=f"pnpm install --lockfile-only; {OTHER}",
    ),
    pnpm(
        "no_lock",
        "pnpm install --frozen-lockfile",
        deps(is_number="7.0.0"),
        "dependency",
        'Cannot install with "frozen-lockfile" because pnpm-lock.yaml is absent',
    ),
    pnpm(
        "no_script", "pnpm run build", {"package.json": scripts(tset="true")}, "configuration", "Missing script: build"
    ),
    pnpm(
        "engine",
        "pnpm install",
        {"package.json": manifest(engines={"node": ">=99"}), **STRICT},
        "version",
        "Unsupported environment",
    ),
    pnpm(
        "json",
        "pnpm install",
        {"package.json": BROKEN_JSON},
        "configuration",
        "Expected ',' or '}' after property value",
        "package.json",
    ),
    pnpm("no_manifest", "pnpm install", {"README": "none\n"}, "configuration", "No package.json found"),
    pnpm(
        "peer",
        "pnpm install",
        {"package.json": manifest(dependencies={"react": "17.0.2", "react-dom": "18.2.0"}), **STRICT},
        "dependency",
        "unmet peer react@^18.2.0",
    ),
    pnpm(
        "workspace",
        "pnpm install",
        {"package.json": manifest(dependencies={"a": "workspace:*"})},
        "dependency",
        '"a@workspace:*" is in the dependencies but no package named "a" is present in the workspace',
    ),
    pnpm(
        "linked",
        "pnpm install",
        {"package.json": manifest(dependencies={"a": "file:./missing"})},
        "dependency",
        "missing",
    ),
    pnpm(
        "lifecycle",
        "pnpm run build",
        {"package.json": scripts(build="node post.js"), **POST},
        "other",
        "TypeError: config.load is not a function",
        "post.js:2",
    ),
    pnpm(
        "catalog",
        "pnpm install",
        {"package.json": manifest(dependencies={"is-number": "catalog:"}), "pnpm-workspace.yaml": "packages: []\n"},
        "dependency",
        "No catalog entry 'is-number' was found for catalog 'default'",
    ),
    pnpm(
        "broken_lock",
        "pnpm install --frozen-lockfile",
        {**deps(is_number="7.0.0"), "pnpm-lock.yaml": "lockfileVersion: '9.0'\nimporters: {\n"},
        "dependency",
        "is broken",
    ),
    pnpm(
        "not_installed",
        "pnpm run lint",
        {"package.json": scripts(lint="oxlintx .")},
        "environment",
        "oxlintx: not found",
    ),
    pnpm("resolver", "pnpm install", deps(left="foo:bar"), "dependency", "left@foo:bar"),
)
YARN = (
    yarn(
        "no_version",
        "yarn install",
        deps(is_number="^99.0.0"),
        "dependency",
        'Couldn\'t find any versions for "is-number" that matches "^99.0.0"',
    ),
    yarn("e404", "yarn install", {"package.json": manifest(dependencies={ABSENT: "1.0.0"})}, "dependency", ABSENT),
    yarn(
        "no_script",
        "yarn run build",
        {"package.json": scripts(tset="true")},
        "configuration",
        'Command "build" not found.',
    ),
    yarn(
        "frozen",
        "yarn install --frozen-lockfile",
        deps(is_number="7.0.0"),
        "dependency",
        "Your lockfile needs to be updated, but yarn was run with `--frozen-lockfile`",
        before=f"yarn install --silent; {OTHER}",
    ),
    yarn(
        "json",
        "yarn install",
        {"package.json": BROKEN_JSON},
        "configuration",
        "package.json: Expected ',' or '}' after property value",
        "package.json",
    ),
    yarn(
        "engine",
        "yarn install",
        {"package.json": manifest(engines={"node": ">=99"})},
        "version",
        'The engine "node" is incompatible with this module. Expected version ">=99"',
    ),
    yarn(
        "linked",
        "yarn install",
        {"package.json": manifest(dependencies={"a": "file:./missing"})},
        "dependency",
        "refers to a non-existing file",
    ),
    yarn(
        "lifecycle",
        "yarn run build",
        {"package.json": scripts(build="node post.js"), **POST},
        "other",
        "TypeError: config.load is not a function",
        "post.js:2",
    ),
    yarn(
        "integrity",
        "yarn install --frozen-lockfile",
        deps(is_number="7.0.0"),
        "dependency",
        'Integrity check failed for "is-number"',
        before=f"yarn install --silent; rm -r node_modules; {HASH} yarn.lock; yarn cache clean",
    ),
    berry(
        "no_version",
        "berry install",
        deps(is_number="^99.0.0"),
        "dependency",
        "is-number@npm:^99.0.0: No candidates found",
    ),
    berry("e404", "berry install", {"package.json": manifest(dependencies={ABSENT: "1.0.0"})}, "dependency", ABSENT),
    berry(
        "immutable",
        "berry install --immutable",
        deps(is_number="7.0.0"),
        "dependency",
        "The lockfile would have been modified by this install, which is explicitly forbidden.",
    ),
    berry(
        "no_script",
        "berry run build",
        {"package.json": scripts(tset="true")},
        "dependency",
        "This package doesn't seem to be present in your lockfile",
    ),
    berry(
        "workspace",
        "berry install",
        {"package.json": manifest(dependencies={"a": "workspace:*"})},
        "dependency",
        "a@workspace:*",
    ),
    berry("json", "berry install", {"package.json": BROKEN_JSON}, "configuration", "package.json", "package.json"),
)
PROJECTS = NPM + PNPM + YARN

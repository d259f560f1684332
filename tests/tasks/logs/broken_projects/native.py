"""Broken modules of Go and crates of Rust."""

from . import Project

MOD = "module example.org/shop\n\ngo 1.19\n"
CARGO = '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n'


def go(name, text, error_class, message, place="", command="go build ./...", **more):
    files = {"go.mod": MOD, "main.go": text, **{key.replace("__", "."): value for key, value in more.items()}}
    return Project("go", name, command, files, error_class, message, place)


def main(body: str, imports: str = "") -> str:
    """Return a program whose function starts at line 3, or at line 5 with ``imports``."""
    return f"package main\n\n{imports and f'import {imports}' + chr(10) * 2}func main() {{\n{body}\n}}\n"


def go_test(
    name,
    body,
    message,
    place,
    error_class="test",
    cart="package shop\n\nfunc Total(prices []int) int {\n\treturn prices[0] + prices[1]\n}\n",
):
    text = (
        f'package shop\n\nimport "testing"\n\nfunc Test{name.title().replace("_", "")}(t *testing.T) {{\n{body}\n}}\n'
    )
    files = {"go.mod": MOD, "cart.go": cart, "cart_test.go": text}
    return Project("go", f"test_{name}", "go test ./...", files, error_class, message, place)


def cargo(
    name, text, error_class, message, place="", command="cargo build --offline", manifest=CARGO, before="", **more
):
    files = {
        "Cargo.toml": manifest,
        "src/lib.rs": text,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return Project("cargo", name, command, files, error_class, message, place, before)


GO = (
    go("undefined", main("\ttotal(1)"), "build_tool", "undefined: total", "main.go:4"),
    go("undefined_other", main("\tprintln(sum)\n\ttotals()"), "build_tool", "undefined: sum", "main.go:4"),
    go("unused", main("\n\ta := 1"), "build_tool", "a declared but not used", "main.go:5"),
    go("unused_import", main("", '"fmt"'), "build_tool", "imported and not used", "main.go:3"),
    go(
        "types",
        main('\tvar a int = "x"\n\t_ = a'),
        "build_tool",
        'cannot use "x" (untyped string constant) as int value in variable declaration',
        "main.go:4",
    ),
    go("return", main("") + "\nfunc f() int {\n}\n", "build_tool", "missing return", "main.go:8"),
    go("syntax", main("\tif true {"), "build_tool", "syntax error: unexpected EOF, expecting }", "main.go:6"),
    go("std", main("\tleft.Run()", '"foo/left"'), "dependency", "package foo/left is not in GOROOT", "main.go:3"),
    go(
        "module",
        main("\tleft.Run()", '"example.com/a/left"'),
        "dependency",
        "no required module provides package example.com/a/left",
        "main.go:3",
    ),
    go(
        "module_other",
        main("\tleft.Run()", '"example.com/b/left"'),
        "dependency",
        "no required module provides package example.com/b/left",
        "main.go:3",
    ),
    go(
        "sum",
        main("\tleft.Run()", '"example.com/a/left"'),
        "dependency",
        "missing go.sum entry",
        "main.go:3",
        go__mod=MOD + "\nrequire example.com/a/left v1.0.0\n",
    ),
    go(
        "replace",
        main("\tleft.Run()", '"example.com/a/left"'),
        "dependency",
        "replacement directory ./left does not exist",
        "main.go:3",
        go__mod=MOD + "\nrequire example.com/a/left v1.0.0\n\nreplace example.com/a/left => ./left\n",
    ),
    go(
        "directive",
        main(""),
        "configuration",
        "unknown directive: requre",
        "go.mod:4",
        go__mod=MOD + "requre example.com/a v1.0.0\n",
    ),
    go(
        "mod_version",
        main(""),
        "configuration",
        "invalid go version",
        "go.mod:3",
        go__mod="module example.org/shop\n\ngo one\n",
    ),
    go(
        "two_packages",
        main(""),
        "configuration",
        "found packages main (main.go) and other (other.go) in",
        "",
        other__go="package other\n",
    ),
    go(
        "cycle",
        main("\t_ = a.A", '"example.org/shop/a"'),
        "build_tool",
        "import cycle not allowed",
        "",
        **{
            "a/a__go": 'package a\n\nimport "example.org/shop/b"\n\nvar A = b.B\n',
            "b/b__go": 'package b\n\nimport "example.org/shop/a"\n\nvar B = a.A\n',
        },
    ),
    go(
        "method",
        main("\tvar s fmt.Stringer = 1\n\t_ = s", '"fmt"'),
        "build_tool",
        "int does not implement fmt.Stringer (missing String method)",
        "main.go:6",
    ),
    go("redeclared", main("") + "\nfunc main() {\n}\n", "build_tool", "main redeclared in this block", "main.go:7"),
    go(
        "vet",
        main('\tfmt.Printf("%d", "x")', '"fmt"'),
        "build_tool",
        'fmt.Printf format %d has arg "x" of wrong type string',
        "main.go:6",
        "go vet ./...",
    ),
    Project(
        "go",
        "no_module",
        "go build ./...",
        {"main.go": main("")},
        "configuration",
        "directory prefix . does not contain main module",
    ),
    go_test(
        "total",
        '\tif Total([]int{1, 2}) != 4 {\n\t\tt.Errorf("the total is %d, not 4", Total([]int{1, 2}))\n\t}',
        "the total is 3, not 4",
        "cart_test.go:7",
    ),
    go_test("fatal", '\n\tt.Fatal("the shop is closed")', "the shop is closed", "cart_test.go:7"),
    go_test("panic", "\tTotal([]int{1})", "panic: runtime error: index out of range [1] with length 1", "cart.go:4"),
    go_test("nil", '\tvar m map[string]int\n\tm["a"] = 1', "panic: assignment to entry in nil map", "cart_test.go:7"),
    go_test(
        "sub_test",
        '\tt.Run("empty cart", func(t *testing.T) {\n\t\tt.Error("no total of nothing")\n\t})',
        "no total of nothing",
        "cart_test.go:7",
    ),
    go_test("build", "\tTotals(nil)", "undefined: Totals", "cart_test.go:6", "build_tool"),
)
CARGOS = (
    cargo("types", 'pub fn a() -> i32 {\n    "x"\n}\n', "build_tool", "error[E0308]: mismatched types", "src/lib.rs:2"),
    cargo(
        "types_other",
        "pub fn a() -> bool {\n    1\n}\n",
        "build_tool",
        "error[E0308]: mismatched types",
        "src/lib.rs:2",
    ),
    cargo(
        "value",
        "pub fn a() -> i32 { totl }\n",
        "build_tool",
        "error[E0425]: cannot find value `totl` in this scope",
        "src/lib.rs:1",
    ),
    cargo(
        "crate",
        "\nuse left::Left;\npub fn a(_: Left) {}\n",
        "dependency",
        "error[E0432]: unresolved import `left`",
        "src/lib.rs:2",
    ),
    cargo(
        "moved",
        'pub fn a() {\n    let s = String::new();\n    let t = s;\n    println!("{}{}", s, t);\n}\n',
        "build_tool",
        "error[E0382]: borrow of moved value: `s`",
        "src/lib.rs:4",
    ),
    cargo(
        "method",
        "pub fn a() { 1i32.left(); }\n",
        "build_tool",
        "error[E0599]: no method named `left` found for type `i32` in the current scope",
        "src/lib.rs:1",
    ),
    cargo(
        "syntax",
        "pub fn a() {\n    let b = 1\n    let _ = b;\n}\n",
        "build_tool",
        "expected `;`, found keyword `let`",
        "src/lib.rs:2",
    ),
    cargo("brace", "pub fn a() {\n", "build_tool", "this file contains an unclosed delimiter", "src/lib.rs:1"),
    cargo(
        "denied",
        "#![deny(unused_variables)]\npub fn a() {\n    let b = 1;\n}\n",
        "build_tool",
        "unused variable: `b`",
        "src/lib.rs:3",
    ),
    cargo(
        "warned",
        "pub fn a() {\n    let b = 1;\n    c();\n}\n",
        "build_tool",
        "error[E0425]: cannot find function `c` in this scope",
        "src/lib.rs:3",
    ),
    cargo(
        "no_package",
        "",
        "dependency",
        "no matching package named `left-zzqx` found",
        manifest=CARGO + '[dependencies]\nleft-zzqx = "1"\n',
    ),
    cargo(
        "no_package_other",
        "",
        "dependency",
        "no matching package named `right-zzqx` found",
        manifest=CARGO + '[dependencies]\nright-zzqx = "1"\n',
    ),
    cargo("toml", "", "configuration", "", "Cargo.toml:2", manifest='[package]\nname = "shop\nversion = "0.1.0"\n'),
    cargo(
        "edition",
        "",
        "configuration",
        "failed to parse the `edition` key",
        "Cargo.toml",
        manifest=CARGO.replace("2021", "2099"),
    ),
    cargo("path", "", "dependency", "left", "", manifest=CARGO + '[dependencies]\nleft = { path = "../left" }\n'),
    cargo(
        "feature",
        "",
        "dependency",
        "feature",
        "",
        manifest=CARGO + '[dependencies]\nq = { path = "q", features = ["fast"] }\n',
        **{"q/Cargo__toml": CARGO.replace("shop", "q"), "q/src/lib__rs": ""},
    ),
    cargo("rust_version", "", "version", "requires rustc 1.999", "", manifest=CARGO + 'rust-version = "1.999"\n'),
    cargo(
        "locked",
        "",
        "dependency",
        "because --locked was passed",
        "",
        "cargo build --offline --locked",
        manifest=CARGO + '[dependencies]\nq = { path = "q" }\n',
        **{
            "q/Cargo__toml": CARGO.replace("shop", "q"),
            "q/src/lib__rs": "",
            "Cargo__lock": '# This file is automatically @generated by Cargo.\nversion = 3\n\n[[package]]\nname = "shop"\nversion = "0.1.0"\n',
        },
    ),
    cargo(
        "build_script",
        "",
        "build_tool",
        "no compiler for prices",
        "build.rs:2",
        build__rs='fn main() {\n    panic!("no compiler for prices");\n}\n',
    ),
    cargo("no_manifest", "", "configuration", "could not find `Cargo.toml`", "", "cd /; cargo build --offline"),
    cargo("option", "", "configuration", "unexpected argument '--relase' found", "", "cargo build --relase"),
    cargo(
        "test_equal",
        "#[test]\nfn adds() {\n    assert_eq!(1 + 1, 3);\n}\n",
        "test",
        "assertion `left == right` failed",
        "src/lib.rs:3",
        "cargo test --offline",
    ),
    cargo(
        "test_panic",
        '#[test]\nfn pays() {\n\n    panic!("the limit is exceeded");\n}\n',
        "test",
        "the limit is exceeded",
        "src/lib.rs:4",
        "cargo test --offline",
    ),
    cargo(
        "test_bounds",
        "pub fn first(a: &[i32]) -> i32 {\n    a[0]\n}\n#[test]\nfn empty() {\n    first(&[]);\n}\n",
        "test",
        "index out of bounds: the len is 0 but the index is 0",
        "src/lib.rs:2",
        "cargo test --offline",
    ),
    cargo(
        "test_should_panic",
        "#[test]\n#[should_panic]\nfn stops() {}\n",
        "test",
        "test did not panic as expected",
        "src/lib.rs:3",
        "cargo test --offline",
    ),
    cargo(
        "test_unwrap",
        '#[test]\nfn parses() {\n    "x".parse::<i32>().unwrap();\n}\n',
        "test",
        "called `Result::unwrap()` on an `Err` value",
        "src/lib.rs:3",
        "cargo test --offline",
    ),
)
PROJECTS = GO + CARGOS

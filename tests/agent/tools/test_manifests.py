"""Dependencies of other ecosystems: only what was asked for changes, locks follow offline, or nothing is written."""

import json
import tomllib

import pytest

from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.dependencies import DependencyUpgradeTool, RemoveDependencyTool, UpgradeBuildToolTool
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import SandboxError
from repairgym.sandbox.cache import ExecutionCache

SERVICES = ToolServices(PipelineConfig(), ExecutionCache())
PACKAGE = """\
{
    "name": "shop", "version": "1.0.0",
    "dependencies": {
        "@scope/left": "~1.0.0",
        "left": "^1.0.0"
    },
    "devDependencies": { "left": "1.0.0" },
    "overrides": { "right": { "left": "1" } }
}
"""
POM = """\
<?xml version="1.0"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <!-- versions -->
  <properties><left.version>1.0</left.version></properties>
  <dependencies>
    <dependency> <!-- é: why left -->
      <groupId>org.a</groupId>
      <artifactId>left</artifactId>
      <version>${left.version}</version>
    </dependency>
    <dependency>
      <groupId>org.b</groupId>
      <artifactId>right</artifactId>
      <version> 2.0 </version>
    </dependency>
    <dependency>
      <groupId>org.b</groupId>
      <artifactId>managed</artifactId>
    </dependency>
  </dependencies>
</project>
"""
GRADLE = """\
plugins {
    id 'java'
    id 'org.a.plugin' version '1.0'
}
def rightVersion = '2.0'
dependencies {
    implementation 'org.a:left:1.0' // not org.a:left:0.9
    testImplementation("org.b:right:$rightVersion") {
        exclude group: 'x'
    }
    api group: 'org.c', name: 'middle', version: '3.0'
    runtimeOnly "org.d:far:${versions.far}"
    // implementation 'org.e:gone:1.0'
}
"""
KOTLIN = """\
plugins { kotlin("jvm") version "1.9.0" }
val rightVersion = "2.0"
dependencies {
    implementation("org.b:right:$rightVersion")
    implementation(libs.left)
}
"""
CATALOG = """\
[versions]
# of all of left
left = "1.0" # keep

[libraries]
left = { module = "org.a:left", version.ref = "left" }
left-more = { group = "org.a", name = "left-more", version.ref = "left" }
right = "org.b:right:2.0"
strict = { module = "org.c:strict", version = { strictly = "1.0" } }

[bundles]
all = ["left", "right"]
"""
GO = """\
module example.org/shop

go 1.19

require github.com/a/left v1.0.0 // keep

require (
\tgithub.com/b/left v1.0.0
\tgithub.com/c/far v0.3.0 // indirect
)

replace github.com/b/left => ../left
"""
CARGO = """\
[package]
name = "shop"

[dependencies]
left = "^1.0" # why
right = { version = "2", optional = true }
own = { path = "own" }

[features]
fast = ["dep:right"]
"""
FILES = {
    "web/package.json": PACKAGE,
    "pom.xml": POM,
    "build.gradle": GRADLE,
    "app/build.gradle.kts": KOTLIN,
    "gradle/libs.versions.toml": CATALOG,
    "go.mod": GO,
    "Cargo.toml": CARGO,
    "web/node_modules/left/package.json": '{"dependencies": {"left": "9"}}',
}


async def no_sandbox(files):
    raise SandboxError("no sandbox in this test")


@pytest.fixture
def context(task, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return ToolContext(task=task, workspace=Workspace(tmp_path, {}, no_sandbox))


async def upgrade(context, name, version, path=""):
    tool = DependencyUpgradeTool(SERVICES)
    return await tool.run(context, tool.check({"name": name, "version": version, "path": path}))


async def remove(context, name, path):
    tool = RemoveDependencyTool(SERVICES)
    return await tool.run(context, tool.check({"name": name, "path": path}))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "name", "version", "old", "new"),
    [
        ("web/package.json", "@scope/left", "2.0.0", '"~1.0.0"', '"~2.0.0"'),
        ("web/package.json", "@scope/left", "=2.0.0", '"~1.0.0"', '"2.0.0"'),
        ("web/package.json", "@scope/left", ">=2 <3", '"~1.0.0"', '">=2 <3"'),
        ("pom.xml", "org.a:left", "1.5", "<left.version>1.0<", "<left.version>1.5<"),
        ("pom.xml", "right", "[2,3)", " 2.0 ", " [2,3) "),
        ("build.gradle", "left", "1.5", "'org.a:left:1.0' //", "'org.a:left:1.5' //"),
        ("build.gradle", "org.b:right", "2.5", "rightVersion = '2.0'", "rightVersion = '2.5'"),
        ("build.gradle", "middle", "3.5", "version: '3.0'", "version: '3.5'"),
        ("build.gradle", "org.a.plugin", "1.5", "version '1.0'", "version '1.5'"),
        ("app/build.gradle.kts", "right", "2.5", 'rightVersion = "2.0"', 'rightVersion = "2.5"'),
        ("app/build.gradle.kts", "kotlin-jvm", "2.0.0", '"1.9.0"', '"2.0.0"'),
        ("gradle/libs.versions.toml", "org.a:left", "1.5", 'left = "1.0" #', 'left = "1.5" #'),
        ("gradle/libs.versions.toml", "right", "2.5", "org.b:right:2.0", "org.b:right:2.5"),
        ("go.mod", "github.com/a/left", "1.5.0", "v1.0.0 // keep", "v1.5.0 // keep"),
        ("go.mod", "github.com/c/far", "v0.4.0", "v0.3.0", "v0.4.0"),
        ("Cargo.toml", "left", "1.5", '"^1.0" # why', '"^1.5" # why'),
        ("Cargo.toml", "left", "=1.5.2", '"^1.0" # why', '"=1.5.2" # why'),
        ("Cargo.toml", "right", "3", 'version = "2"', 'version = "3"'),
    ],
)
async def test_an_upgrade_changes_the_version_and_nothing_else(context, path, name, version, old, new):
    seen = await upgrade(context, name, version, path)
    assert seen.error == "", seen.text
    assert FILES[path].count(old) == 1
    assert context.workspace.changes == {path: FILES[path].replace(old, new)}


@pytest.mark.asyncio
async def test_all_manifests_that_declare_a_name_change_together(context):
    seen = await upgrade(context, "org.b:right", "9.9")
    assert set(context.workspace.changes) == {
        "pom.xml", "build.gradle", "app/build.gradle.kts", "gradle/libs.versions.toml",
    }  # fmt: skip
    assert len(seen.text.splitlines()) == 4


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "name", "gone"),
    [
        ("web/package.json", "@scope/left", '        "@scope/left": "~1.0.0",\n'),
        ("pom.xml", "org.b:managed", None),
        ("build.gradle", "left", "    implementation 'org.a:left:1.0' // not org.a:left:0.9\n"),
        ("build.gradle", "org.b:right", None),
        ("go.mod", "github.com/c/far", "\tgithub.com/c/far v0.3.0 // indirect\n"),
        ("Cargo.toml", "left", 'left = "^1.0" # why\n'),
    ],
)
async def test_a_removal_takes_the_declaration_and_nothing_else(context, path, name, gone):
    seen = await remove(context, name, path)
    assert seen.error == "", seen.text
    text = context.workspace.read(path)
    if gone is not None:
        assert FILES[path].count(gone) == 1
        assert text == FILES[path].replace(gone, "")
    else:
        assert name.rpartition(":")[2] not in text.replace("rightVersion", "").replace("<artifactId>right", "")
        assert (await upgrade(context, name, "1.0", path)).error == "tool"


@pytest.mark.asyncio
async def test_the_last_member_goes_with_the_comma_before_it(context):
    await remove(context, "left", "web/package.json")
    document = json.loads(context.workspace.read("web/package.json"))
    assert (document["dependencies"], document["devDependencies"]) == ({"@scope/left": "~1.0.0"}, {})


@pytest.mark.asyncio
async def test_an_alias_of_a_catalog_goes_from_its_bundles_and_its_users_are_named(context):
    seen = await remove(context, "org.a:left", "gradle/libs.versions.toml")
    document = tomllib.loads(context.workspace.read("gradle/libs.versions.toml"))
    assert "left" not in document["libraries"]
    assert document["bundles"] == {"all": ["right"]}
    assert "app/build.gradle.kts still uses libs.left" in seen.text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "version", "path", "told"),
    [
        ("org.b:managed", "1", "pom.xml", "its parent, a dependencyManagement section or an imported BOM decides it"),
        ("org.d:far", "1", "build.gradle", "has the version ${versions.far}, which this file does not define"),
        ("org.c:strict", "1", "gradle/libs.versions.toml", "has a rich version"),
        ("own", "1", "Cargo.toml", "it comes from `path`"),
        ("right", "1", "web/package.json", "overrides has a nested value"),
        ("left", "", "go.mod", "left is not declared in go.mod"),
        ("github.com/a/left", "latest", "go.mod", "got version 'latest'"),
        ("org.a:left", "", "pom.xml", "give a version of org.a:left"),
        ("left", "1 </version>", "pom.xml", "got version '1 </version>'"),
        ("gone", "1", "build.gradle", "gone is not declared in build.gradle; declared: org.a.plugin, org.a:left"),
        ("left", "1.5", "", "left means"),
    ],
)
async def test_an_error_says_what_cannot_be_changed(context, name, version, path, told):
    seen = await upgrade(context, name, version, path)
    assert seen.error == "tool"
    assert told in seen.text
    assert context.workspace.changes == {}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("web/package.json", '{"dependencies": {"left": "1",}}', "is no JSON"),
        ("pom.xml", "<project><dependencies></project>", "is no XML"),
        ("pom.xml", "<!DOCTYPE a [<!ENTITY b 'c'>]><project/>", "has a document type"),
        ("Cargo.toml", "[dependencies\n", "is no TOML"),
    ],
)
async def test_a_malformed_manifest_is_named(context, path, text, told):
    await context.workspace.write(path, text)
    assert told in (await upgrade(context, "left", "2", path)).text


@pytest.mark.asyncio
async def test_a_lock_that_nothing_can_write_offline_keeps_both_files(context):
    await context.workspace.write("gradle.lockfile", "org.a:left:1.0=compileClasspath\n")
    seen = await upgrade(context, "org.a:left", "1.5", "build.gradle")
    assert "gradle.lockfile pins this" in seen.text
    assert list(context.workspace.changes) == ["gradle.lockfile"]


@pytest.mark.asyncio
async def test_wrappers_are_checked(context):
    maven = ".mvn/wrapper/maven-wrapper.properties"
    address = "distributionUrl=https://repo.maven.apache.org/maven2/org/apache/maven/apache-maven/{0}/apache-maven-{0}-bin.zip\n"
    await context.workspace.write(maven, address.format("3.8.1"))
    tool = UpgradeBuildToolTool(SERVICES)
    assert (await tool.run(context, tool.check({"name": "maven"}))).text == f"{maven}: maven 3.8.1"
    await tool.run(context, tool.check({"name": "maven", "version": "3.9.6"}))
    assert context.workspace.read(maven) == address.format("3.9.6")
    await context.workspace.write(maven, address.format("3.8.1") + "distributionSha256Sum=aa\n")
    refused = await tool.run(context, tool.check({"name": "maven", "version": "3.9.6"}))
    assert "distributionSha256Sum of maven 3.8.1" in refused.text
    assert (await tool.run(context, tool.check({"name": "maven", "version": "9"}))).error == "tool"

"""Edits that break the builds of Java libraries."""

from pathlib import Path

import pytest

from repairgym.tasks.java.breaks import find_java_breaks
from repairgym.tasks.java.project import pom, settings_files
from repairgym.tasks.layers.catalogue import JavaPackage

PACKAGE = JavaPackage(
    name="tiny", split="train", group="org.example", artifact="tiny", version="1.0-1", sdists={"1.0-1": "debian-00"},
    dependencies=("org.apache.commons:commons-lang3:3.12.0",),
)  # fmt: skip
SOURCES = {
    "src/main/java/A.java": """import java.util.List;
import java.util.Map;

/** A list, no Map. */
public class A {
    public static int size(final List<String> list) throws IOException {
        String name = "x"; // a size
        return list.size();
    }
}
""",
    "src/main/java/B.java": "public class B { int n = A.size(null); }\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in {**SOURCES, "pom.xml": pom(PACKAGE)}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_settings_are_broken_in_dependencies_plugins_and_properties(tree: Path) -> None:
    edits = find_java_breaks(tree, "pom.xml")
    operators = {edit.operator for edit in edits}
    assert {"wrong_version", "missing_dependency", "wrong_scope", "old_level", "wrong_folder"} <= operators
    version = next(edit for edit in edits if "4.13.27" in edit.text)
    assert version.operator == "wrong_version"
    assert version.text.count("4.13.2<") == 0
    removed = [edit for edit in edits if edit.operator == "missing_dependency"]
    assert [("commons-lang3" in edit.text, "<artifactId>junit" in edit.text) for edit in removed] == [
        (False, True),
        (True, False),
    ]


def test_sources_are_broken_as_half_done_changes_leave_them(tree: Path) -> None:
    edits = {edit.operator: edit.text for edit in find_java_breaks(tree, "src/main/java/A.java")}
    # Map stands in a comment only: without its import the file compiles.
    assert "import java.util.Map;" in edits["missing_import"]
    assert "import java.util.List;" not in edits["missing_import"]
    assert "int sizeImpl(" not in edits.get("renamed_method", "")  # size() of the list has the same name
    assert ") {" in edits["missing_throws"]
    assert "return" not in edits["missing_return"]
    assert 'int name = "x"' in edits["wrong_type"]


def test_a_method_is_renamed_only_where_another_file_calls_it(tree: Path) -> None:
    path = tree / "src/main/java/A.java"
    path.write_text(path.read_text().replace("list.size()", "1"))
    renamed = [e for e in find_java_breaks(tree, "src/main/java/A.java") if e.operator == "renamed_method"]
    assert ["int sizeImpl(" in edit.text for edit in renamed] == [True]
    (tree / "src/main/java/B.java").unlink()
    left = find_java_breaks(tree, "src/main/java/A.java")
    assert "renamed_method" not in {edit.operator for edit in left}


def test_recipes_name_one_edit_each(tree: Path) -> None:
    for path in ("pom.xml", "src/main/java/A.java"):
        edits = find_java_breaks(tree, path)
        assert len({edit.recipe for edit in edits}) == len({edit.text for edit in edits}) == len(edits) > 3
        assert find_java_breaks(tree, path) == edits


def test_settings_of_gradle_are_broken_in_dependencies_plugins_repositories_and_syntax(tmp_path: Path) -> None:
    for path, text in settings_files(PACKAGE.model_copy(update={"tool": "gradle"})).items():
        (tmp_path / path).write_text(text)
    edits = find_java_breaks(tmp_path, "build.gradle")
    changed = {edit.operator: edit.text for edit in reversed(edits)}
    assert "'junit:junit:4.13.2'" not in changed["wrong_group"]
    assert "'org.apache.commons:commons-lang3:3.12.07'" in changed["wrong_version"]
    assert "'org.apache.commons:commons-lang3'" in changed["missing_version"]
    assert "commons-lang3" not in changed["missing_dependency"]
    assert "runtimeOnly 'org.apache" in "".join(e.text for e in edits if e.operator == "wrong_configuration")
    assert "id 'java'" not in changed["missing_plugin"]
    assert "mavenCentral()" not in changed["missing_repository"]
    assert "project(':core')" in changed["unknown_project"]
    # The version of the project itself is no fault.
    assert all("version = '1.0'" in edit.text for edit in edits if edit.operator != "unclosed_text")
    assert len({edit.recipe for edit in edits}) == len({edit.text for edit in edits}) == len(edits)
    assert {edit.operator for edit in find_java_breaks(tmp_path, "settings.gradle")} == {
        "misspelled_name",
        "unclosed_text",
    }


def test_settings_of_a_build_tool_are_those_of_the_entry() -> None:
    assert list(settings_files(PACKAGE)) == ["pom.xml"]
    script = settings_files(PACKAGE.model_copy(update={"tool": "gradle", "level": 11}))["build.gradle"]
    assert "implementation 'org.apache.commons:commons-lang3:3.12.0'" in script
    assert "sourceCompatibility = '11'" in script

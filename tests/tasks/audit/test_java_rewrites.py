"""Right and wrong variants of Java builds, as texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from repairgym.tasks.audit.java_rewrites import choose_rewrites, rewrite_file, rewrites_of
from repairgym.tasks.audit.variants import VariantBounds, right_variants, wrong_variants
from repairgym.tasks.java.project import GRADLE, GRADLE_ROOT, JAVA_TEST, POM, pom, settings_files
from repairgym.tasks.layers.catalogue import JavaPackage
from repairgym.testing.scripted import scripted_task

PACKAGE = JavaPackage(
    name="tiny", split="train", group="org.example", artifact="tiny", version="1.0-1", sdists={"1.0-1": "debian-00"},
    dependencies=("org.apache.commons:commons-lang3:3.12.0",),
)  # fmt: skip
SOURCE = """package org.example;

import java.util.List;
import java.util.Map;

/* A text with
import java.util.Set;
import java.util.Map;
        return nothing;
    }
*/
public class A {
    public static String size(final List<String> list) {
        String text = "    return a;";
        return text + list.size();
    }
}
"""


def as_set(element: ET.Element) -> tuple[object, ...]:
    """An element whose children have no order."""
    return element.tag, (element.text or "").strip(), frozenset(map(as_set, element))


def words(text: str) -> list[str]:
    return sorted(re.sub(r"//.*|[()\"']", " ", text).split())


@pytest.mark.parametrize("kind", sorted(rewrites_of(POM)))
def test_settings_of_maven_mean_the_same_in_another_order(kind: str) -> None:
    text = pom(PACKAGE)
    rewritten = rewrite_file(POM, text, (kind,))
    assert rewritten not in (None, text)
    assert as_set(ET.fromstring(rewritten or "")) == as_set(ET.fromstring(text))
    # The order of dependencies is that of the class path.
    names = re.compile("<artifactId>.*</artifactId>")
    assert names.findall(rewritten or "") == names.findall(text)


@pytest.mark.parametrize("path", [GRADLE, GRADLE_ROOT])
def test_settings_of_gradle_are_written_in_another_way(path: str) -> None:
    text = settings_files(PACKAGE.model_copy(update={"tool": "gradle"}))[path]
    chosen = dict(choose_rewrites(path, text, 20, "seed"))
    assert len(chosen) >= (6 if path == GRADLE else 3)
    assert text not in chosen.values()
    assert all(words(rewritten) == words(text) for rewritten in chosen.values())


def test_sources_change_outside_of_comments_and_texts() -> None:
    imports = rewrite_file("A.java", SOURCE, ("reorder_imports",)) or ""
    assert "\nimport java.util.Map;\nimport java.util.List;\n\n/* A text with\nimport java.util.Set;\n" in imports
    brackets = rewrite_file("A.java", SOURCE, ("brackets",)) or ""
    assert "return (text + list.size());" in brackets
    assert brackets.count("(text") == brackets.replace("return nothing", "").count("return (") == 1
    assert '"    return a;"' in (rewrite_file("A.java", SOURCE, ("indent", "comment")) or "")
    assert rewrite_file("A.java", "class A {}\n", ("reorder_imports",)) is None
    assert list(choose_rewrites("a.txt", SOURCE, 3, "seed")) == []


def test_wrong_variants_of_a_build_are_other_breaks_of_its_file_and_bugs_of_its_siblings(tmp_path: Path) -> None:
    gold = pom(PACKAGE)
    (tmp_path / POM).write_text(gold)
    tests = (f"{JAVA_TEST}::test_the_project_builds",)
    tasks = [
        scripted_task(
            f"tiny-{version}",
            source="breakages",
            base_files={POM: gold.replace("4.13.2", version)},
            gold_files={POM: gold},
            fail_to_pass=tests,
            pass_to_pass=(),
        )
        for version in ("4.13.27", "5")
    ]
    wrong = wrong_variants(tasks[0], tasks, VariantBounds(), tmp_path)
    assert [variant.kind for variant in wrong] == [*["settings"] * 6, "sibling_file"]
    assert len({variant.key for variant in wrong}) == 7
    assert wrong[-1].files == {POM: tasks[1].base_files[POM]}
    assert {variant.files[POM] for variant in wrong}.isdisjoint({gold, tasks[0].base_files[POM]})
    assert wrong_variants(tasks[0], tasks, VariantBounds(seed=1), tmp_path) != wrong
    assert [variant.kind for variant in right_variants(tasks[0], VariantBounds())] == ["rewrite"] * 3

"""MkDocs hook: the site has the repository's layout, so the links of its pages hold on it as well.

Pages of `docs/` keep that prefix, the README is the front page, what pages link to outside of
`docs/` comes along, and each room of the library has a page of the API reference.
"""

import json
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Folders and files outside of `docs/`; Markdown becomes pages, all else is copied.
ALONG = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "benchmarks", "examples", "reports")
SCALES = ("smoke", "quick", "small", "gpu", "paper")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the API reference to the navigation."""
    config.nav = [*(config.nav or []), {"API": [{page.stem: str(page)} for page in _reference()]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give every file the path that it has in the repository, and add the API reference."""
    site = Files([])
    for file in files:
        if file.src_uri.startswith("docs/") or file.abs_src_path is None:
            site.append(file)
        elif Path(file.abs_src_path).is_relative_to(ROOT / "docs"):
            site.append(_file(config, Path(file.abs_src_path)))
        else:
            site.append(file)  # the theme's
    outside = [path for name in ALONG for path in _walk(ROOT / name)]
    for path in [*outside, *_walk(ROOT / "sparse_lib", "*.py")]:
        name = path.relative_to(ROOT)
        twin = path.name == "README.md" and name.parts[0] == "reports"
        local = name.parts[0] == "reports" and name.parts[1] in SCALES
        if not twin and not local:  # the HTML page stands for its Markdown twin
            site.append(_file(config, path))
    site.append(_generated(config, "index.md", (ROOT / "README.md").read_text()))
    site.append(_generated(config, "docs/tutorial.md", _notebook(ROOT / "docs/tutorial.ipynb")))
    for name, text in _reference().items():
        site.append(_generated(config, str(name), text))
    return site


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has a page: reports as HTML, the notebook as Markdown."""
    markdown = re.sub(r"(\]\((?:\.\./)?reports/(?:\w+/)?)README\.md", r"\1index.html", markdown)
    return markdown.replace("tutorial.ipynb)", "tutorial.md)")


def _walk(path: Path, pattern: str = "*") -> list[Path]:
    found = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    return [file for file in found if file.is_file() and "__pycache__" not in file.parts]


def _file(config: MkDocsConfig, path: Path) -> File:
    return File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))


def _generated(config: MkDocsConfig, name: str, text: str) -> File:
    return File.generated(config, name, content=text)


def _notebook(path: Path) -> str:
    """Cells with what they printed and drew, as Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get("image/png", "").replace("\n", "")
            if picture:
                parts.append(f"![drawn by the cell above](data:image/png;base64,{picture})")
            elif "text" in output:
                parts.append("```text\n" + "".join(output["text"]) + "```")
    return "\n\n".join(parts)


def _reference() -> dict[PurePosixPath, str]:
    """One page for each module or package at the top of `sparse_lib`."""
    rooms = sorted(
        path.stem
        for path in (ROOT / "sparse_lib").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    )
    first = {
        "algorithms": "---\nsearch:\n  boost: 4\n---\n"
    }  # so the search for RigL finds the class
    return {
        PurePosixPath(f"docs/api/{room}.md"): (
            f"{first.get(room, '')}# sparse_lib.{room}\n\n::: sparse_lib.{room}\n"
        )
        for room in rooms
    }

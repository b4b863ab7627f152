"""
A command imports the hooks it is told to: modules, packages, files.
"""

from __future__ import annotations

import sys

import pytest

from eventbus import hooks
from eventbus._load import LoadError, load

HOOK = """
from eventbus import Hook, TurnStartedEvent, on

class {}(Hook):
    @on(TurnStartedEvent)
    def tell(self): ...
"""


@pytest.fixture(autouse=True)
def imports(monkeypatch):
    """Forget afterwards what a test has imported, and where from."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names():
    return [info.name for info in hooks()]


class TestFiles:
    """A path is imported."""

    def test_a_file_is_imported_under_its_own_name(self, tmp_path):
        """Its hooks go live; who imports it by name gets the same module."""
        path = tmp_path / "refund_hooks.py"
        path.write_text(HOOK.format("Audit"))
        load(str(path))
        import refund_hooks

        assert [refund_hooks.Audit] == [info.cls for info in hooks()]
        assert "refund_hooks" == refund_hooks.Audit.__module__

    def test_a_file_that_was_imported_is_not_imported_again(self, tmp_path):
        """Naming a file twice changes nothing."""
        path = tmp_path / "twice.py"
        path.write_text(HOOK.format("Once"))
        load(str(path))
        first = hooks().get("Once").cls
        load(str(path))
        assert first is hooks().get("Once").cls

    def test_a_file_imports_its_neighbours(self, tmp_path):
        """Modules in the file's folder are found, but do not hide others of their name."""
        (tmp_path / "neighbour.py").write_text(HOOK.format("Near"))
        (tmp_path / "json.py").write_text("raise RuntimeError")
        path = tmp_path / "main_hooks.py"
        path.write_text("import json\nimport neighbour\njson.dumps(1)\n")
        load(str(path))
        load(str(path))
        assert ["Near"] == names()
        assert 1 == sys.path.count(str(tmp_path))

    def test_a_name_that_is_taken_is_made_another(self, tmp_path):
        """Two files of one name, and one with the name of a module, are all imported and replace nothing."""
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        for path in (tmp_path / "a" / "my_hooks.py", tmp_path / "b" / "my_hooks.py", tmp_path / "json.py"):
            path.write_text(HOOK.format("Audit"))
            load(str(path))
        modules = [info.cls.__module__ for info in hooks()]
        assert ["Audit"] * 3 == names()
        assert "my_hooks" == modules[0]
        assert modules[1].startswith("my_hooks_")
        assert modules[2].startswith("json_")
        assert all(name in sys.modules for name in modules)

    def test_a_file_need_not_have_the_name_of_a_module(self, tmp_path):
        """What no identifier may have becomes an underscore."""
        path = tmp_path / "my-hooks v2.py"
        path.write_text(HOOK.format("Odd"))
        load(str(path))
        assert hooks().get("Odd").cls.__module__.startswith("my_hooks_v2")

    def test_a_relative_path_is_one(self, tmp_path, monkeypatch):
        """A name that ends in `.py` or has a separator is a path."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "near.py").write_text(HOOK.format("Near"))
        load("near.py")
        assert ["Near"] == names()

    @pytest.mark.parametrize("name", ["nosuch.py", "./nosuch"])
    def test_a_path_that_leads_nowhere_is_an_error(self, name):
        """The text says so."""
        with pytest.raises(LoadError) as caught:
            load(name)
        assert f"{name} failed to import: FileNotFoundError: there is no such file" == str(caught.value)

    def test_a_file_that_is_no_python_is_an_error(self, tmp_path):
        """Only `.py` files are imported."""
        path = tmp_path / "hooks.txt"
        path.write_text("")
        with pytest.raises(LoadError, match=r"ImportError: it is no \.py file"):
            load(str(path))

    def test_a_file_that_fails_can_be_tried_again(self, tmp_path):
        """Half a module is not kept."""
        path = tmp_path / "flaky.py"
        path.write_text("1 / 0")
        with pytest.raises(LoadError):
            load(str(path))
        path.write_text(HOOK.format("Well") + "\n# longer, so that no cached code is taken for it\n")
        load(str(path))
        assert ["Well"] == names()


class TestModules:
    """A dotted name is imported as `discover` does."""

    def test_a_package_is_imported_with_its_modules(self, tmp_path):
        """The hooks of all modules go live."""
        (tmp_path / "shop" / "hooks").mkdir(parents=True)
        (tmp_path / "shop" / "hooks" / "audit.py").write_text(HOOK.format("Audit"))
        (tmp_path / "shop" / "hooks" / "budget.py").write_text(HOOK.format("Budget"))
        sys.path.append(str(tmp_path))
        load("shop.hooks")
        assert {"Audit", "Budget"} == set(names())

    def test_a_module_that_does_not_exist_is_an_error(self):
        """The text names it; there is no traceback to show."""
        with pytest.raises(LoadError) as caught:
            load("nosuch.hooks")
        expected = "nosuch.hooks failed to import: ModuleNotFoundError: No module named 'nosuch'"
        assert expected == str(caught.value)

    def test_several_that_fail_are_all_named(self, tmp_path):
        """Each failing module of a package has its lines."""
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "one.py").write_text("1 / 0")
        (tmp_path / "bad" / "two.py").write_text("import nosuch")
        sys.path.append(str(tmp_path))
        with pytest.raises(LoadError) as caught:
            load("bad")
        assert "bad.one failed to import: ZeroDivisionError" in str(caught.value)
        assert "bad.two failed to import: ModuleNotFoundError" in str(caught.value)


class TestErrors:
    """What fails is shown with the end of its traceback."""

    def test_the_innermost_frames_are_shown(self, tmp_path):
        """Three frames of the user's own code, and none of the import system."""
        path = tmp_path / "deep.py"
        path.write_text(
            "".join(f"def f{n}():\n    f{n + 1}()\n" for n in range(5)) + "def f5():\n    1 / 0\nf0()\n"
        )
        with pytest.raises(LoadError) as caught:
            load(str(path))
        text = str(caught.value)
        assert text.startswith(f"{path} failed to import: ZeroDivisionError: division by zero\n")
        assert ["in f3", "in f4", "in f5"] == [
            line.partition(", ")[2].partition(", ")[2] for line in text.splitlines() if "File" in line
        ]
        assert "importlib" not in text

    def test_a_syntax_error_is_shown_at_its_place(self, tmp_path):
        """File, line and text of what Python could not read."""
        path = tmp_path / "broken.py"
        path.write_text("x = 1\ny = (\n")
        with pytest.raises(LoadError) as caught:
            load(str(path))
        assert f'  File "{path}", line 2\n    y = (' in str(caught.value)

    def test_a_module_that_exits_has_failed(self, tmp_path):
        """A program named by mistake does not end the command without a word."""
        path = tmp_path / "program.py"
        path.write_text("import sys\nsys.exit(3)\n")
        with pytest.raises(LoadError, match="SystemExit: 3"):
            load(str(path))

    def test_an_interrupt_goes_on(self, tmp_path):
        """Ctrl-C while a module is imported is no failure of the module."""
        path = tmp_path / "slow.py"
        path.write_text("raise KeyboardInterrupt\n")
        with pytest.raises(KeyboardInterrupt):
            load(str(path))

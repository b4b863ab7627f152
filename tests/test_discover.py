"""
Importing the modules in which an application keeps its hooks.
"""

from __future__ import annotations

import sys

import pytest

from eventbus import DiscoveryError, EventbusError, discover, hooks

HOOK = "from eventbus import Hook\nclass {0}(Hook):\n    pass\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write files below a directory that is on the path; what they import is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(files):
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


class TestPackages:
    """`discover("myapp.hooks")`."""

    def test_every_module_is_imported(self, package):
        """Of the package and its subpackages; their hooks are live, and the names come back in order."""
        package(
            {
                "acme/__init__": "",
                "acme/audit": HOOK.format("Audit"),
                "acme/deep/__init__": HOOK.format("Deep"),
                "acme/deep/inner": HOOK.format("Inner"),
                "acme/no_package/data": "raise SystemExit(3)",
            }
        )
        assert ["acme", "acme.audit", "acme.deep", "acme.deep.inner"] == discover("acme")
        assert ["Audit", "Deep", "Inner"] == [info.name for info in hooks()]

    def test_a_plain_module(self, package):
        """It need not be a package."""
        package({"acme_hooks": HOOK.format("Single")})
        assert ["acme_hooks"] == discover("acme_hooks")

    def test_a_program_is_not_run(self, package):
        """`__main__` of a package is left alone."""
        package({"acme/audit": "", "acme/__main__": "raise SystemExit(3)"})
        assert ["acme", "acme.audit"] == discover("acme")

    def test_what_is_imported_already(self, package):
        """Discovering twice imports nothing again, and names the same modules."""
        package({"acme/audit": HOOK.format("Audit")})
        assert discover("acme") == discover("acme")
        assert 1 == len(hooks())


class TestFailures:
    """One that fails to import raises with its name, after the others were loaded."""

    def test_one_failure(self, package):
        """The error names the module and the cause, and is an ImportError too."""
        package({"acme/a": HOOK.format("First"), "acme/b": "1 / 0", "acme/c": HOOK.format("Last")})
        with pytest.raises(DiscoveryError) as caught:
            discover("acme")
        assert "acme.b failed to import: ZeroDivisionError: division by zero" == str(caught.value)
        assert ("acme.b", ZeroDivisionError) == (caught.value.name, type(caught.value.__cause__))
        assert isinstance(caught.value, ImportError)
        assert isinstance(caught.value, EventbusError)
        assert ["First", "Last"] == [info.name for info in hooks()]

    def test_several_failures(self, package):
        """They come as one group."""
        package({"acme/a": "1 / 0", "acme/b": "syntax error", "acme/c": HOOK.format("Last")})
        with pytest.raises(ExceptionGroup) as caught:
            discover("acme")
        assert ["acme.a", "acme.b"] == [error.name for error in caught.value.exceptions]
        assert ["Last"] == [info.name for info in hooks()]

    def test_a_package_that_is_not_there(self):
        """It is named as well."""
        with pytest.raises(
            DiscoveryError, match=r"^acme_nowhere\.hooks failed to import: ModuleNotFoundError"
        ):
            discover("acme_nowhere.hooks")

    def test_an_exit_is_not_swallowed(self, package):
        """A module that ends the process on import does so."""
        package({"acme/a": "raise SystemExit(3)"})
        with pytest.raises(SystemExit):
            discover("acme")


class TestEntryPoints:
    """`discover()` loads the entry-point group `eventbus.hooks`."""

    def distribution(self, tmp_path, name, *lines):
        """Install a distribution that offers hooks."""
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(["[eventbus.hooks]", *lines, ""]))

    def test_they_are_loaded_by_name(self, package, tmp_path):
        """A module or a class in one, of whichever distribution."""
        package({"acme_one": HOOK.format("One"), "acme_two": HOOK.format("Two")})
        self.distribution(tmp_path, "acme_b", "b = acme_two:Two")
        self.distribution(tmp_path, "acme_a", "a = acme_one")
        assert ["acme_one", "acme_two:Two"] == discover()
        assert ["One", "Two"] == [info.name for info in hooks()]

    def test_one_that_fails_is_named(self, package, tmp_path):
        """After the others were loaded."""
        package({"acme_two": HOOK.format("Two")})
        self.distribution(tmp_path, "acme", "a = acme_missing", "b = acme_two")
        with pytest.raises(DiscoveryError, match=r"^acme_missing failed to import: ModuleNotFoundError"):
            discover()
        assert ["Two"] == [info.name for info in hooks()]

    def test_none_are_offered(self):
        """Nothing is loaded then."""
        assert [] == discover()

"""The plugin door: built-ins by the same one, one owner a name, errors that name the distribution, hooks only at the edge."""

from __future__ import annotations

import inspect
import types
from importlib import metadata

import pytest

import ovsdk
from ovsdk import (
    BackendUnavailable,
    ConfigError,
    HookFailed,
    PluginConflict,
    PluginError,
    hookimpl,
    hookspecs,
    make,
    open_backend,
    plugin_manager,
    plugins,
    run,
)
from ovsdk.backends.thread import ThreadBackend

from .toys import Count, Echo, Failing


def hooks():
    return [name for name in vars(hookspecs) if name.startswith("ovsdk_")]


@pytest.fixture
def installed(monkeypatch):
    """Pretend that distributions with these plugins are installed: name -> object, or an exception that its import raises."""

    def install(**entries):
        class Entry:
            group = "ovsdk"

            def __init__(self, name):
                self.name = name

            def load(self):
                if isinstance(entries[self.name], Exception):
                    raise entries[self.name]
                return entries[self.name]

        monkeypatch.setattr(plugins, "_installed", lambda: tuple((Entry(n), f"ovsdk-{n} 1.0") for n in entries))

    return install


class Scheduling:
    @hookimpl
    def ovsdk_make_scheduler(self, name, options):
        return Count(options.get("steps", 3)) if name == "count" else None


# ---- every hook, by name (test_docs checks that none is missing) ----


def test_hook_ovsdk_configure_gets_the_environment_once_per_plugin(monkeypatch):
    monkeypatch.setenv("OVSDK_CACHE", "somewhere")
    seen = []

    class Plugin:
        @hookimpl
        def ovsdk_configure(self, config):
            seen.append(config["OVSDK_CACHE"])

    manager = plugin_manager([Plugin()])
    assert seen == ["somewhere"]
    manager.add(Plugin(), "late")
    assert seen == ["somewhere", "somewhere"]


def test_hook_ovsdk_probe_backends_gives_the_reason():
    class Plugin:
        @hookimpl
        def ovsdk_probe_backends(self):
            return {"quantum": "no fridge; pip install fridge"}

    with pytest.raises(BackendUnavailable, match="quantum: no fridge; pip install fridge") as caught:
        open_backend("quantum", plugins=[Plugin()])
    assert "\n  thread: available" in str(caught.value)


def test_hook_ovsdk_open_backend_opens():
    class Plugin:
        @hookimpl
        def ovsdk_probe_backends(self):
            return {"mine": None}

        @hookimpl
        def ovsdk_open_backend(self, name, index, options):
            backend = ThreadBackend(**options)
            backend.index = index
            return backend if name == "mine" else backend.close()

    with open_backend("mine:3", plugins=[Plugin()], timeout_s=5.0) as backend:
        assert (backend.index, backend.timeout_s) == (3, 5.0)


def test_hook_ovsdk_make_scheduler_is_used_where_a_name_is_given():
    with open_backend("thread", plugins=[Scheduling()]) as backend:
        assert run("count", Echo(), backend).steps == 3
        assert make("scheduler", "count", {"steps": 5}, plugins=backend.plugins).steps == 5


def test_hook_ovsdk_make_executor_is_used_where_a_name_is_given():
    class Plugin:
        @hookimpl
        def ovsdk_make_executor(self, name):
            return Echo() if name == "echo" else None

    with open_backend("thread", plugins=[Plugin()]) as backend:
        assert run(Count(4), "echo", backend).steps == 4


def test_hook_ovsdk_make_queue_is_used_by_threads():
    import queue

    made = []

    class Plugin:
        @hookimpl
        def ovsdk_make_queue(self, name, options):
            if name == "ring":
                made.append((queue.Queue(options["capacity"]), options["role"]))
                return made[-1][0]
            return None

    with open_backend("thread", plugins=[Plugin()]) as backend:
        assert run(Count(6), Echo(), backend, driver="threads", queue="ring", depth=3).steps == 6
    assert [(q.maxsize, role) for q, role in made] == [(3, "input"), (3, "output")]


def test_hook_ovsdk_prices_finds_a_price_file():
    class Plugin:
        @hookimpl
        def ovsdk_prices(self, name):
            return {"schema": 1, "stage": {"plan_us": 1}, "launch": {"decode": {"device_us": 2}}} if name == "tiny" else None

    manager = plugin_manager([Plugin()])
    assert manager.one("ovsdk_prices", "price file 'tiny'", name="tiny")["launch"] == {"decode": {"device_us": 2}}
    assert manager.one("ovsdk_prices", "price file 'x'", name="x") is None


class Watching:
    def __init__(self):
        self.calls = []

    @hookimpl
    def ovsdk_run_started(self, run):
        self.calls.append(("started", run.backend, run.driver, run.depth))

    @hookimpl
    def ovsdk_observers(self, run):
        return [lambda span: self.calls.append(span.what)]

    @hookimpl
    def ovsdk_run_finished(self, run, report, error):
        self.calls.append(("finished", report and report.steps, type(error)))


def test_hook_ovsdk_run_started_and_hook_ovsdk_run_finished_frame_a_run():
    watch = Watching()
    with open_backend("thread", plugins=[watch]) as backend:
        run(Count(2), Echo(), backend)
    assert watch.calls[0] == ("started", "thread", "inline", 2)
    assert watch.calls[-1] == ("finished", 2, type(None))


def test_hook_ovsdk_run_finished_is_told_the_error():
    watch = Watching()
    with open_backend("thread", plugins=[watch]) as backend, pytest.raises(ovsdk.StepError):
        run(Count(2), Echo(broken), backend)
    assert watch.calls[-1] == ("finished", None, ovsdk.StepError)


def broken(value):
    raise ValueError(value)


def test_hook_ovsdk_observers_see_spans_and_change_no_decision():
    watch, plain, watched = Watching(), Count(5), Count(5)
    with ThreadBackend() as backend:
        run(plain, Echo(), backend)
    with open_backend("thread", plugins=[watch]) as backend:
        run(watched, Echo(), backend, spans=False)
    assert {"plan", "prepare", "launch", "retire", "echo"} <= {c for c in watch.calls if isinstance(c, str)}
    assert watched.trace == plain.trace


def test_an_observer_that_raises_stops_the_run_and_is_named():
    class Plugin:
        @hookimpl
        def ovsdk_observers(self):
            return [broken]

    with open_backend("thread", plugins=[Plugin()]) as backend, pytest.raises(HookFailed, match=r"observer .*broken.* raised ValueError"):
        run(Count(2), Echo(), backend)


def test_hook_ovsdk_step_failed_is_asked_once_per_failed_step_with_everything():
    asked = []

    class Plugin:
        @hookimpl
        def ovsdk_step_failed(self, run, step, stage, batch, error):
            asked.append((run.depth, step, stage, batch, type(error)))
            return "abandon"

    scheduler = Failing(3)
    with open_backend("thread", plugins=[Plugin()]) as backend:
        report = run(scheduler, Echo(broken), backend)
    assert asked == [(2, k, "device", k + 1, ValueError) for k in range(3)]
    assert len(report.notes) == 3


def test_an_unknown_answer_to_step_failed_is_refused():
    class Plugin:
        @hookimpl
        def ovsdk_step_failed(self):
            return "abort"

    with open_backend("thread", plugins=[Plugin()]) as backend, pytest.raises(ConfigError, match=r"'abort'.*allowed: abandon, stop"):
        run(Failing(2), Echo(broken), backend)


def test_hook_ovsdk_cli_adds_commands():
    from typer.testing import CliRunner

    from ovsdk.cli import application

    class Plugin:
        @hookimpl
        def ovsdk_cli(self, app):
            @app.command()
            def hello():
                print("hello from a plugin")

    result = CliRunner().invoke(application([Plugin()]), ["hello"])
    assert result.output == "hello from a plugin\n"


# ---- where hooks may not run ----


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_the_number_of_hook_calls_does_not_grow_with_the_steps(driver):
    def calls(steps):
        count = []
        with open_backend("thread") as backend:
            backend.plugins.add_hookcall_monitoring(lambda name, *_: count.append(name), lambda *_: None)
            run(Count(steps), Echo(), backend, driver=driver)
        return count

    assert calls(1) == calls(300)


# ---- whose fault ----


def test_two_owners_of_a_name_are_both_named(installed):
    installed(red=Scheduling(), blue=Scheduling())
    with pytest.raises(
        PluginConflict, match=r"scheduler 'count' is offered by 'blue' \(ovsdk-blue 1.0\) and 'red' \(ovsdk-red 1.0\)|'red'.*'blue'"
    ):
        make("scheduler", "count")


def test_two_owners_of_a_backend_are_both_named(installed):
    class Plugin:
        @hookimpl
        def ovsdk_probe_backends(self):
            return {"cpu": None}

    installed(other=Plugin())
    with pytest.raises(PluginConflict, match=r"backend 'cpu' is offered by .*builtin.*other.*ovsdk-other 1.0|other.*builtin"):
        open_backend("cpu")


def test_a_plugin_that_cannot_be_imported_names_its_distribution(installed):
    installed(bad=ImportError("no module named 'fridge'"))
    with pytest.raises(
        PluginError, match=r"plugin 'bad' of ovsdk-bad 1.0 cannot be imported: ImportError: no module named 'fridge'; mend or uninstall"
    ) as caught:
        plugin_manager()
    assert (caught.value.plugin, caught.value.distribution) == ("bad", "ovsdk-bad 1.0")
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_misspelt_hook_names_the_plugin(installed):
    class Plugin:
        @hookimpl
        def ovsdk_opn_backend(self, name):
            return None

    installed(typo=Plugin())
    with pytest.raises(PluginError, match=r"plugin 'typo' \(ovsdk-typo 1.0\) is not valid: .*ovsdk_opn_backend"):
        plugin_manager()


def test_a_hook_that_raises_names_the_distribution(installed):
    class Plugin:
        @hookimpl
        def ovsdk_make_scheduler(self, name):
            raise KeyError(name)

    installed(sad=Plugin())
    with pytest.raises(HookFailed, match=r"plugin 'sad' \(ovsdk-sad 1.0\) failed in ovsdk_make_scheduler: KeyError: 'x'") as caught:
        make("scheduler", "x")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_probe_that_raises_names_the_distribution(installed):
    class Plugin:
        @hookimpl
        def ovsdk_probe_backends(self):
            raise OSError("driver")

    installed(sad=Plugin())
    with pytest.raises(HookFailed, match=r"'sad' \(ovsdk-sad 1.0\) failed in ovsdk_probe_backends: OSError: driver"):
        open_backend("cpu")


def test_the_allow_list_allows_and_refuses(installed, monkeypatch):
    installed(red=Scheduling(), bad=ImportError("broken"))
    monkeypatch.setenv("OVSDK_PLUGINS", "red")
    assert make("scheduler", "count").steps == 3
    monkeypatch.setenv("OVSDK_PLUGINS", "")
    with pytest.raises(ConfigError, match="no plugin knows a scheduler called 'count'"):
        make("scheduler", "count")
    monkeypatch.setenv("OVSDK_PLUGINS", "rad")
    with pytest.raises(ConfigError, match=r"unknown plugin in OVSDK_PLUGINS 'rad' \(did you mean 'red'\?\)"):
        plugin_manager()


def test_tracing_prints_hook_arguments_and_implementers(monkeypatch, capsys):
    monkeypatch.setenv("OVSDK_TRACE_HOOKS", "1")
    make("scheduler", "count", plugins=[Scheduling()])
    out = capsys.readouterr().err
    assert "ovsdk_make_scheduler(name='count', options={}) -> [builtin, Scheduling]" in out
    assert "ovsdk_make_scheduler = [<" in out


def test_a_one_off_plugin_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ovsdk import hookimpl\n@hookimpl\ndef ovsdk_make_scheduler(name):\n    return 'made' if name == 'file' else None\n"
    )
    assert make("scheduler", "file", plugins=[file]) == "made"
    file.write_text("import nowhere_to_be_found")
    with pytest.raises(PluginError, match=r"mine.py.* cannot be imported: ModuleNotFoundError"):
        make("scheduler", "file", plugins=[file])
    with pytest.raises(ConfigError, match="does not exist"):
        make("scheduler", "file", plugins=[tmp_path / "none.py"])


def test_unknown_backends_and_options_say_what_is_known():
    with pytest.raises(BackendUnavailable, match=r"'thred' cannot be opened here \(did you mean 'thread'\?\)"):
        open_backend("thred")
    with pytest.raises(
        ConfigError, match=r"unknown option of backend 'thread' 'timeout' \(did you mean 'timeout_s'\?\); allowed: timeout_s"
    ):
        open_backend("thread", timeout=3)
    with pytest.raises(ConfigError, match="has one device, 0; got index 2"):
        open_backend("thread:2")
    with pytest.raises(ConfigError, match="NAME or NAME:INDEX"):
        open_backend("thread:x")
    with pytest.raises(ConfigError, match="unknown kind of object 'schedule'"):
        make("schedule", "x")


def test_built_ins_come_in_by_the_plugin_door():
    manager = plugin_manager()
    assert next(name for name, _ in manager.list_name_plugin()) == "builtin"
    assert set(manager.probe()) >= {"cpu", "thread", "sim"}


def test_real_entry_points_are_read():
    names = {entry.name for entry, _ in plugins._installed()}
    assert names == {entry.name for entry in metadata.entry_points(group="ovsdk")}


def test_every_hook_is_documented_and_takes_named_arguments():
    for name in hooks():
        hook = getattr(hookspecs, name)
        assert isinstance(hook, types.FunctionType)
        assert inspect.getdoc(hook)

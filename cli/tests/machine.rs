//! `doctor`, `off`, `on`, `completions`, `man`: over a made-up machine.

mod common;

use std::path::Path;

use common::{Done, World, some_library};
use underdeck_cli::exit::Exit;

/// A procfs with these limits.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { root: tempfile::tempdir().expect("a directory") };
        machine
            .file("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n")
            .file("proc/self/limits", "Limit\nMax open files            65536    524288    files\n")
            .file("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
            .file("proc/sys/fs/pipe-user-pages-soft", "0\n")
            .file("proc/sys/fs/pipe-user-pages-hard", "0\n")
            .file("proc/sys/fs/pipe-max-size", "1048576\n")
            .file("proc/sys/kernel/yama/ptrace_scope", "1\n");
        let library = machine.path("lib/underdeck/libunderdeck_anchor.so");
        std::fs::create_dir_all(library.parent().expect("a directory")).expect("ours");
        std::fs::copy(some_library(), library).expect("a copy");
        sh_open(machine.root.path());
        machine
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path)
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("ours");
        std::fs::write(path, text).expect("ours");
        self
    }

    fn world(&self) -> World {
        World {
            proc: self.path("proc"),
            run: self.path("run"),
            executable: self.path("bin/underdeck"),
            uid: 1000,
            ..World::default()
        }
        .var("PATH", "")
    }

    /// The finding of this id: its status, what was found and what it costs.
    fn finding(&self, id: &str, world: &mut World) -> (String, String, String) {
        let done = world.underdeck(&["doctor", "--json"]);
        let json: serde_json::Value =
            serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        let findings = json["findings"].as_array().expect("a list");
        let finding = findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{id}: {json}"));
        let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        let bad = findings.iter().any(|finding| finding["status"] == "bad");
        assert_eq!(done.exit, if bad { Exit::Bad } else { Exit::Ok });
        assert_eq!((&json["schema"], &json["ok"]), (&1.into(), &(!bad).into()));
        assert_eq!(text("status") == "ok", finding.get("repair").is_none(), "what is not ok says how to repair it");
        (text("status"), text("found"), text("cost"))
    }

    fn expect(&self, id: &str, status: &str, words: &str) {
        let (found_status, found, cost) = self.finding(id, &mut self.world());
        assert_eq!(found_status, status, "{id}: {found}");
        assert!(format!("{found} {cost}").contains(words), "{id}: {words:?} is not in {found:?}, {cost:?}");
    }
}

/// Other users may pass, or `engine.readable` would warn.
fn sh_open(path: &Path) {
    common::sh("chmod -R o+rX .", path);
}

#[test]
fn a_good_machine_is_all_right() {
    let machine = Machine::new();
    let done = machine.world().underdeck(&["doctor"]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.out);
    assert!(!done.out.contains('×'), "{}", done.out);
    for (id, words) in [
        ("machine.kernel", "6.1.0"),
        ("pipes.user-pages-soft", "no limit"),
        ("pipes.max-size", "1.00 MiB"),
        ("limits.nofile", "65536"),
        ("engine.loads", "loads"),
        ("engine.readable", "every user"),
        ("engine.switch", "on"),
        ("privilege.yama", "ptrace_scope 1"),
    ] {
        machine.expect(id, "ok", words);
    }
}

#[test]
fn limits_are_counted_out() {
    let machine = Machine::new();
    machine.file("proc/sys/fs/pipe-user-pages-soft", "16384\n");
    machine.expect("pipes.user-pages-soft", "warn", "at most 64 to 256 bodies");
    machine.file("proc/sys/fs/pipe-user-pages-hard", "32768\n");
    machine.expect("pipes.user-pages-hard", "warn", "32768");
    machine.file("proc/sys/fs/pipe-max-size", "65536\n");
    machine.expect("pipes.max-size", "warn", "64.0 KiB");
    machine.file("proc/self/limits", "Max open files            1024    524288    files\n");
    machine.expect("limits.nofile", "warn", "1024");
    // CAP_SYS_RESOURCE is bit 24.
    machine.file("proc/self/status", "CapEff:\t0000000001000000\n");
    machine.expect("pipes.user-pages-soft", "ok", "no limit for you");
    machine.expect("pipes.user-pages-hard", "ok", "no limit for you");
}

#[test]
fn old_kernels_and_privileges_are_named() {
    let machine = Machine::new();
    machine.file("proc/sys/kernel/osrelease", "5.10.0\n");
    machine.expect("machine.kernel", "warn", "5.10.0");
    machine.expect("privilege.see-others", "warn", "user 1000");
    machine.expect("privilege.bpf", "ok", "no CAP_BPF");
    machine.file("proc/self/status", "CapEff:\t0000008000080000\n");
    machine.expect("privilege.see-others", "ok", "every process");
    machine.expect("privilege.bpf", "ok", "verify protocol programs");
}

#[test]
fn a_missing_or_broken_engine_is_bad() {
    let machine = Machine::new();
    let mut world = World { preload: Err("ERROR: ld.so: wrong ELF class".to_owned()), ..machine.world() };
    assert_eq!(machine.finding("engine.loads", &mut world).0, "bad");
    std::fs::remove_file(machine.path("lib/underdeck/libunderdeck_anchor.so")).expect("ours");
    machine.expect("engine.library", "bad", "not found");
    let done = machine.world().underdeck(&["doctor"]);
    assert_eq!(done.exit, Exit::Bad);
    assert!(done.out.contains("× engine.library") && done.out.contains("repair: "), "{}", done.out);
}

#[test]
fn signs_follow_the_terminal() {
    let machine = Machine::new();
    let out = |world: World| -> String {
        let Done { out, .. } = { world }.underdeck(&["doctor"]);
        out
    };
    assert!(out(machine.world()).contains("√ machine.libc: glibc"));
    let ascii = out(machine.world().var("LANG", "C"));
    assert!(ascii.contains("ok machine.libc") && ascii.is_ascii(), "{ascii}");
    let terminal = || World { terminal: true, ..machine.world() };
    assert!(out(terminal()).contains("\x1b[32m√"));
    assert!(!out(terminal().var("NO_COLOR", "1")).contains('\x1b'));
}

#[test]
fn proxies_on_the_path_are_looked_at() {
    let machine = Machine::new();
    machine.file("sbin/haproxy", "#!/no/such/interpreter\n");
    std::fs::create_dir_all(machine.path("sbin")).expect("ours");
    std::fs::copy("/bin/true", machine.path("sbin/nginx")).expect("a copy");
    common::sh("chmod 755 sbin/*", machine.root.path());
    let sbin = machine.path("sbin");
    let mut world = machine.world().var("PATH", &sbin);
    assert_eq!(machine.finding("programs.nginx", &mut world).0, "ok");
    let (status, found, _) = machine.finding("programs.haproxy", &mut world);
    assert_eq!((status.as_str(), found.contains("/no/such/interpreter")), ("warn", true), "{found}");
}

#[test]
fn without_procfs_doctor_says_so() {
    let done = World { proc: "/nowhere".into(), ..World::default() }.underdeck(&["doctor"]);
    assert_eq!((done.exit, done.err.contains("procfs")), (Exit::Missing, true), "{}", done.err);
}

#[test]
fn off_makes_the_file_that_engines_look_at_and_on_removes_it() {
    let machine = Machine::new();
    let mut root = World { uid: 0, ..machine.world() };
    assert_eq!(root.underdeck(&["off"]).exit, Exit::Ok);
    assert!(machine.path("run/underdeck/off").exists());
    machine.expect("engine.switch", "warn", "off: ");
    assert_eq!(root.underdeck(&["off"]).exit, Exit::Ok, "twice is fine");
    assert_eq!(root.underdeck(&["on"]).exit, Exit::Ok);
    assert!(!machine.path("run/underdeck/off").exists());
    let again = root.underdeck(&["on"]);
    assert_eq!((again.exit, again.err.contains("already")), (Exit::Ok, true), "{}", again.err);
}

#[test]
fn an_ordinary_user_has_a_switch_of_their_own() {
    let machine = Machine::new();
    let done = machine.world().underdeck(&["off"]);
    assert_eq!((done.exit, done.err.contains("XDG_RUNTIME_DIR")), (Exit::Missing, true), "{}", done.err);
    let session = machine.path("session");
    std::fs::create_dir(&session).expect("ours");
    let mut world = machine.world().var("XDG_RUNTIME_DIR", &session);
    assert_eq!(world.underdeck(&["off"]).exit, Exit::Ok);
    assert!(session.join("underdeck/off").exists());
    assert_eq!(machine.finding("engine.switch", &mut world).0, "warn");
    assert_eq!(world.underdeck(&["on"]).exit, Exit::Ok);
    assert!(!session.join("underdeck/off").exists());
}

#[test]
fn every_verb_is_completed_and_has_a_page() {
    let verbs: Vec<String> = underdeck_cli::command()
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| verb.get_name().to_owned())
        .collect();
    for shell in ["bash", "zsh", "fish"] {
        let script = World::default().underdeck(&["completions", shell]);
        assert_eq!(script.exit, Exit::Ok);
        for verb in &verbs {
            assert!(script.out.contains(verb.as_str()), "{shell}: {verb}");
        }
    }
    let place = tempfile::tempdir().expect("a directory");
    let pages = place.path().join("man");
    World::default().underdeck(&["man", "--out", pages.to_str().expect("plain")]);
    for verb in &verbs {
        let page = std::fs::read_to_string(pages.join(format!("underdeck-{verb}.1"))).expect("a page");
        assert!(page.contains(".SH SYNOPSIS"), "{verb}");
    }
    assert!(World::default().underdeck(&["man"]).out.contains("underdeck\\-run(1)"));
}

#[test]
fn help_goes_to_stdout_and_complaints_to_stderr() {
    let help = World::default().underdeck(&["--help"]);
    assert_eq!((help.exit, help.err.as_str()), (Exit::Ok, ""));
    let nothing = World::default().underdeck(&["nonsense"]);
    assert_eq!((nothing.exit, nothing.out.as_str()), (Exit::Usage, ""));
    let terminal = || World { terminal: true, ..World::default() };
    assert!(terminal().underdeck(&["--help"]).out.contains('\x1b'));
    assert!(!terminal().var("NO_COLOR", "1").underdeck(&["--help"]).out.contains('\x1b'));
}

//! What is left of steering: nothing when it is dropped, detached or killed; everything when it is pinned.
//!
//! The owner that is killed is this test program itself, started again for one test.

#[path = "../../tcp/tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Host, Site, eventually};
use underdeck_handoff_steer::{Attachment, Flow, Options, Steer};

/// Interfaces, hook and pin folder for the owner that is started.
const OWNER: &str = "UNDERDECK_TEST_OWNER";

fn flow(port: u16) -> Flow {
    Flow { local: "10.0.0.2:80".parse().unwrap(), peer: ([10, 0, 0, 1], port).into() }
}

/// Programs at the hooks of eth0, as the kernel counts them: tcx, and filters of clsact.
fn attached(host: &Host) -> (usize, usize) {
    host.on(|| {
        // SAFETY: a C string.
        let interface = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
        let tcx = [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS].map(|hook| programs(interface, hook));
        let clsact = ["ingress", "egress"].map(|hook| {
            let output = Command::new("tc").args(["filter", "show", "dev", "eth0", hook]).output().expect("iproute2");
            String::from_utf8_lossy(&output.stdout).matches(" handle ").count()
        });
        (tcx.iter().sum(), clsact.iter().sum())
    })
}

fn programs(interface: u32, hook: libbpf_sys::bpf_attach_type) -> usize {
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: the kernel writes a count to the options.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(interface.cast_signed(), hook, &raw mut options) };
    assert_eq!(result, 0, "tcx can be asked (Linux 6.6)");
    // SAFETY: the call has written the count.
    unsafe { options.__bindgen_anon_1.count as usize }
}

/// What `owner_that_waits_to_be_killed` does in another process: attaches, blocks a flow, and waits.
#[test]
fn owner_that_waits_to_be_killed() {
    let Ok(how) = std::env::var(OWNER) else { return };
    let (attachment, pin) = match how.split_once(' ') {
        Some(("clsact", _)) => (Attachment::Clsact, None),
        Some(("tcx", "")) => (Attachment::Tcx, None),
        Some(("tcx", pin)) => (Attachment::Tcx, Some(PathBuf::from(pin))),
        _ => panic!("{how}"),
    };
    let steer = Steer::attach(&["eth0"], &Options { attachment, pin, capacity: 8 }).unwrap();
    steer.block(&flow(1)).unwrap();
    println!("\nattached");
    // Until the other end of the pipe goes, in case nobody kills it.
    let _ = std::io::stdin().read(&mut [0]);
}

fn owner(host: &Host, how: &str) -> Child {
    let mut child = host.on(|| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "owner_that_waits_to_be_killed", "--nocapture"])
            .env(OWNER, how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started")
    });
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "attached"), "the owner has attached");
    child
}

fn kill(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it is this process's");
}

#[test]
fn dropping_leaves_nothing() {
    let site = Site::new(false);
    for (attachment, expected) in [(Attachment::Tcx, (2, 0)), (Attachment::Clsact, (0, 2)), (Attachment::Auto, (2, 0))]
    {
        let options = Options { attachment, ..Options::default() };
        let steer = site.balancer.on(|| Steer::attach(&["eth0"], &options)).unwrap();
        assert_eq!(attached(&site.balancer), expected);
        site.balancer.on(|| drop(steer));
        assert_eq!(attached(&site.balancer), (0, 0));
        let qdiscs = site.balancer.on(|| Command::new("tc").args(["qdisc", "show", "dev", "eth0"]).output()).unwrap();
        assert!(!String::from_utf8_lossy(&qdiscs.stdout).contains("clsact"), "the qdisc is gone too");
    }
}

#[test]
fn two_owners_share_an_interface() {
    let site = Site::new(false);
    for attachment in [Attachment::Tcx, Attachment::Clsact] {
        let options = Options { attachment, ..Options::default() };
        let one = site.balancer.on(|| Steer::attach(&["eth0"], &options)).unwrap();
        let other = site.balancer.on(|| Steer::attach(&["eth0"], &options)).unwrap();
        let (client, server) = site.connect(false);
        let flow = Flow { local: server.local_addr().unwrap(), peer: client.local_addr().unwrap() };
        other.block(&flow).unwrap();
        std::io::Write::write_all(&mut &client, b"ping").unwrap();
        eventually("the second one's rule holds", || other.ingress_counters(&flow).unwrap().packets > 0);
        site.balancer.on(|| drop(one));
        other.remove(&flow).unwrap();
        let mut four = [0; 4];
        (&server).read_exact(&mut four).unwrap();
        site.balancer.on(|| drop(other));
    }
}

#[test]
fn tcx_goes_with_the_process() {
    let site = Site::new(false);
    let child = owner(&site.balancer, "tcx ");
    assert_eq!(attached(&site.balancer), (2, 0));
    kill(child);
    eventually("the kernel has detached it", || attached(&site.balancer) == (0, 0));
}

#[test]
fn filters_of_a_dead_process_are_swept_and_those_of_a_live_one_are_not() {
    let site = Site::new(false);
    let (dead, live) = (owner(&site.balancer, "clsact "), owner(&site.balancer, "clsact "));
    kill(dead);
    assert_eq!(attached(&site.balancer), (0, 4), "they outlive it");
    assert_eq!(site.balancer.on(|| Steer::sweep(&["eth0"])).unwrap(), 2);
    assert_eq!(attached(&site.balancer), (0, 2));
    assert_eq!(site.balancer.on(|| Steer::sweep(&["eth0"])).unwrap(), 0);
    kill(live);
    // Attaching sweeps too.
    let steer = site.balancer.on(|| Steer::attach(&["eth0"], &Options::default())).unwrap();
    assert_eq!(attached(&site.balancer), (2, 0));
    site.balancer.on(|| drop(steer));
    assert_eq!(attached(&site.balancer), (0, 0));
}

/// A BPF file system of the test's own.
struct BpfFs(PathBuf);

impl BpfFs {
    fn new() -> BpfFs {
        let path = std::env::temp_dir().join(format!("underdeck-test-bpf-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        common::run(&format!("mount -t bpf bpf {}", path.display()));
        BpfFs(path)
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        common::run(&format!("umount {}", self.0.display()));
        std::fs::remove_dir(&self.0).unwrap();
    }
}

fn pinned(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn pinned_rules_outlive_the_process_and_are_taken_over() {
    let files = BpfFs::new();
    let folder = files.0.join("web");
    let site = Site::new(false);
    kill(owner(&site.balancer, &format!("tcx {}", folder.display())));
    assert_eq!(attached(&site.balancer), (2, 0), "the rules still hold");
    assert_eq!(pinned(&folder), 3, "two links and the map");

    let options = Options { pin: Some(folder.clone()), ..Options::default() };
    let steer = site.balancer.on(|| Steer::attach(&["eth0"], &options)).unwrap();
    assert_eq!(attached(&site.balancer), (2, 0), "the same hooks, not two more");
    steer.block(&flow(2)).unwrap();
    let rules: Vec<(u16, bool)> = steer.rules().iter().map(|rule| (rule.flow.peer.port(), rule.inherited)).collect();
    assert_eq!(rules, [(1, true), (2, false)]);
    assert_eq!(steer.sweep_inherited(Duration::ZERO).unwrap(), [flow(1)]);
    assert_eq!(steer.rules().len(), 1, "its own rules stay");

    site.balancer.on(|| drop(steer));
    assert_eq!(attached(&site.balancer), (2, 0), "a planned restart keeps the rules as well");
    let steer = site.balancer.on(|| Steer::attach(&["eth0"], &options)).unwrap();
    assert_eq!(steer.rules().len(), 1);
    site.balancer.on(|| steer.detach());
    assert_eq!(attached(&site.balancer), (0, 0));
    assert!(!folder.exists());
}

#[test]
fn a_folder_that_is_no_bpf_file_system_is_refused() {
    let site = Site::new(false);
    let folder = std::env::temp_dir().join(format!("underdeck-test-no-bpf-{}", std::process::id()));
    let options = Options { pin: Some(folder.clone()), ..Options::default() };
    let error = site.balancer.on(|| Steer::attach(&["eth0"], &options)).unwrap_err();
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
    assert_eq!(attached(&site.balancer), (0, 0));
    assert!(!folder.exists());
}

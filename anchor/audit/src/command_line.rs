//! Which configuration a command line would read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Options, ProxyKind};

/// What a proxy would read if it were started with some command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Which proxy it is, by the program's name.
    pub kind: ProxyKind,
    /// Its configuration files (HAProxy: also directories), in order. Empty: the command line names none, and there is
    /// no default.
    pub files: Vec<PathBuf>,
    /// Configuration in the command line itself: nginx's `-g`, Envoy's `--config-yaml`.
    pub inline: Option<String>,
}

impl CommandLine {
    /// What [`crate::check_files`] should be told along with the files.
    pub fn options(&self) -> Options {
        Options { kind: Some(self.kind), inline: self.inline.clone(), ..Options::default() }
    }
}

/// Reads a command line as the proxy itself would, from the working directory `directory`. `None`: the program is none
/// of the proxies that we know.
///
/// nginx is asked for its compiled-in paths (`nginx -V`), unless the command line names them.
pub fn find_configs(argv: &[OsString], directory: &Path) -> Option<CommandLine> {
    let program = Path::new(argv.first()?);
    let kind = ProxyKind::of_program(program)?;
    let args: Vec<String> = argv[1..].iter().map(|a| a.to_string_lossy().into_owned()).collect();
    Some(match kind {
        ProxyKind::Nginx => nginx(&args, directory, || built_in_paths(program)),
        ProxyKind::Haproxy => haproxy(&args, directory),
        ProxyKind::Envoy => envoy(&args, directory),
    })
}

/// The prefix and the configuration file that nginx was built with.
fn built_in_paths(program: &Path) -> (PathBuf, PathBuf) {
    let output = Command::new(program).arg("-V").stdin(Stdio::null()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stderr).into_owned()).unwrap_or_default();
    configured_paths(&text)
}

/// The same, from what `nginx -V` says; without it, the defaults of nginx's own `configure`.
fn configured_paths(text: &str) -> (PathBuf, PathBuf) {
    let option = |name: &str| text.split_whitespace().find_map(|w| w.strip_prefix(name)).map(PathBuf::from);
    (
        option("--prefix=").unwrap_or_else(|| "/usr/local/nginx".into()),
        option("--conf-path=").unwrap_or_else(|| "conf/nginx.conf".into()),
    )
}

fn nginx(args: &[String], directory: &Path, built_in: impl FnOnce() -> (PathBuf, PathBuf)) -> CommandLine {
    let (mut file, mut prefix, mut inline) = (None, None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        // Flags may stand together, and the value of the last one may follow at once: `-qc/etc/nginx.conf`.
        let Some(flags) = arg.strip_prefix('-') else { continue };
        for (n, flag) in flags.char_indices() {
            if !matches!(flag, 'c' | 'p' | 'g' | 's' | 'e') {
                continue;
            }
            let attached = &flags[n + flag.len_utf8()..];
            let value = if attached.is_empty() { args.next().cloned() } else { Some(attached.to_owned()) };
            match flag {
                'c' => file = value.map(PathBuf::from),
                'p' => prefix = value.map(PathBuf::from),
                'g' => inline = value,
                _ => {}
            }
            break;
        }
    }
    let absolute = |p: &Option<PathBuf>| p.as_ref().is_some_and(|p| p.is_absolute());
    let (built_in_prefix, built_in_file) = if absolute(&file) { Default::default() } else { built_in() };
    let prefix = directory.join(prefix.unwrap_or(built_in_prefix));
    let file = prefix.join(file.unwrap_or(built_in_file));
    CommandLine { kind: ProxyKind::Nginx, files: vec![file], inline }
}

fn haproxy(args: &[String], directory: &Path) -> CommandLine {
    let (mut files, mut directory) = (Vec::new(), directory.to_path_buf());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-f" => files.extend(args.next().cloned()),
            "-C" => directory = args.next().map_or_else(|| directory.clone(), |d| directory.join(d)),
            "-p" | "-L" | "-n" | "-N" | "-m" | "-x" | "-S" | "-cc" => drop(args.next()),
            "--" => files.extend(args.by_ref().cloned()),
            _ => {}
        }
    }
    let files = files.into_iter().map(|f| directory.join(f)).collect();
    CommandLine { kind: ProxyKind::Haproxy, files, inline: None }
}

fn envoy(args: &[String], directory: &Path) -> CommandLine {
    let (mut file, mut inline) = (None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, attached) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (arg.as_str(), None),
        };
        match name {
            "-c" | "--config-path" => file = attached.or_else(|| args.next().cloned()),
            "--config-yaml" => inline = attached.or_else(|| args.next().cloned()),
            _ => {}
        }
    }
    let files = file.filter(|f| !f.is_empty()).map(|f| directory.join(f)).into_iter().collect();
    CommandLine { kind: ProxyKind::Envoy, files, inline }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|a| (*a).to_owned()).collect()
    }

    fn nginx_file(args: &[&str]) -> PathBuf {
        let built_in = || ("/usr/share/nginx".into(), "/etc/nginx/nginx.conf".into());
        nginx(&strings(args), "/home".as_ref(), built_in).files.remove(0)
    }

    #[test]
    fn nginx_takes_its_file_from_the_prefix() {
        assert_eq!(nginx_file(&["-g", "daemon off;"]), Path::new("/etc/nginx/nginx.conf"));
        assert_eq!(nginx_file(&["-c", "my.conf"]), Path::new("/usr/share/nginx/my.conf"));
        assert_eq!(nginx_file(&["-p", "/x", "-c", "conf/a.conf"]), Path::new("/x/conf/a.conf"));
        assert_eq!(nginx_file(&["-qc/a.conf"]), Path::new("/a.conf"));
        assert_eq!(nginx_file(&["-p", "sub", "-c", "a.conf"]), Path::new("/home/sub/a.conf"));
        let line = nginx(&strings(&["-c", "/a", "-g", "daemon off;"]), "/".as_ref(), || unreachable!());
        assert_eq!(line.inline.as_deref(), Some("daemon off;"));
    }

    #[test]
    fn nginx_says_what_it_was_built_with() {
        let text =
            "nginx version: nginx/1.22.1\nconfigure arguments: --with-cc-opt='-g' --prefix=/p --conf-path=/c/n.conf";
        assert_eq!(configured_paths(text), ("/p".into(), "/c/n.conf".into()));
        assert_eq!(configured_paths(""), ("/usr/local/nginx".into(), "conf/nginx.conf".into()));
    }

    #[test]
    fn haproxy_reads_all_files_in_order() {
        let line = haproxy(&strings(&["-W", "-f", "a", "-p", "-f", "-f", "/b", "-C", "/etc", "--", "c"]), "/".as_ref());
        assert_eq!(line.files, ["/etc/a", "/b", "/etc/c"].map(PathBuf::from));
    }

    #[test]
    fn envoy_reads_a_file_or_its_command_line() {
        let line = envoy(&strings(&["--config-path=e.yaml", "--log-level", "info"]), "/etc".as_ref());
        assert_eq!(line.files, [PathBuf::from("/etc/e.yaml")]);
        let line = envoy(&strings(&["--config-yaml", "admin: {}"]), "/etc".as_ref());
        assert_eq!((line.files, line.inline.as_deref()), (vec![], Some("admin: {}")));
    }

    #[test]
    fn other_programs_are_not_ours() {
        assert_eq!(find_configs(&["/usr/bin/python3".into()], "/".as_ref()), None);
        assert_eq!(find_configs(&[], "/".as_ref()), None);
    }
}

//! What comes with a release: the definitions of packages that others build from its tarballs, and the signature of its
//! checksums; and what CONTRIBUTING says of the source.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::recipes;
use crate::support::{Done, Nxlock};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn in_shell(shell: &str, directory: &Path, script: &str) -> Done {
    Nxlock::by(shell, ["-ec", script]).in_directory(directory).run()
}

/// Makes tarballs as those of a release, whose binary is a script, and the definitions beside them.
fn release() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "for machine in x86_64 aarch64; do
             name=nxlock-{VERSION}-$machine-unknown-linux-musl
             mkdir $name
             (cd {ROOT} && cp -r README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT completions man \"$OLDPWD/$name\")
             rm $name/man/*.in
             printf '#!/bin/sh\\necho %s\\n' $machine > $name/nxlock
             tar -czf $name.tar.gz $name
             rm -r $name
         done
         {ROOT}/.ci/packaging/fill ."
    );
    in_shell("bash", directory.path(), &script).exits(0).says_nothing();
    directory
}

/// What each package has to install, below /usr.
const INSTALLED: [&str; 8] = [
    "bin/nxlock",
    "share/bash-completion/completions/nxlock",
    "share/doc/nxlock/config.toml",
    "share/fish/vendor_completions.d/nxlock.fish",
    "share/man/man1/nxlock-run.1",
    "share/man/man7/nxlock-recipes.7",
    "share/man/man7/nxlock.7",
    "share/zsh/site-functions/_nxlock",
];

#[test]
fn the_definitions_of_packages_have_no_gap_and_name_what_is_released() {
    let directory = release();
    let mut definitions = 0;
    for entry in fs::read_dir(directory.path()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".tar.gz") {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let gap = text.split('@').skip(1).step_by(2).find(|word| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        });
        assert_eq!(gap, None, "{name}");
        assert!(text.contains(VERSION) && text.contains(env!("CARGO_PKG_REPOSITORY")), "{name}");
        definitions += 1;
    }
    assert_eq!(definitions, 5);
    // Those whose tarballs are named in full.
    for name in ["Dockerfile", "nxlock.rb"] {
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        let urls: Vec<&str> = text.split([' ', '"', '\n']).filter(|word| word.ends_with("musl.tar.gz")).collect();
        assert_eq!(urls.len(), 2, "{name}");
        for url in urls {
            let file = url.strip_prefix(&format!("{}/releases/download/v{VERSION}/", env!("CARGO_PKG_REPOSITORY")));
            let sum = in_shell("sh", directory.path(), &format!("sha256sum {}", file.unwrap())).exits(0).text();
            assert!(text.contains(sum.split(' ').next().unwrap()), "{name}: {url}");
        }
    }
}

#[test]
fn a_package_of_arch_and_one_of_alpine_install_what_the_release_has() {
    let directory = release();
    for (shell, definition, sources, sums) in
        [("bash", "PKGBUILD", "${!s}", "sha256sum"), ("sh", "APKBUILD", "$source", "sha512sum")]
    {
        for machine in ["x86_64", "aarch64"] {
            let place = format!("{definition}-{machine}");
            let script = format!(
                "CARCH={machine} srcdir=$PWD/{place}/src pkgdir=$PWD/{place}/pkg
                 mkdir -p $srcdir $pkgdir
                 . ./{definition}
                 s=source_{machine} url={sources}
                 file=${{url##*/}}
                 case $url in */v{VERSION}/nxlock-{VERSION}-{machine}-*) ;; *) exit 1 ;; esac
                 grep -q $({sums} $file | cut -d' ' -f1) {definition}
                 tar -xzf $file -C $srcdir
                 cd ${{builddir-$srcdir}}
                 package
                 cd $pkgdir/usr && find . -type f"
            );
            let listed = in_shell(shell, directory.path(), &script).exits(0).says_nothing().text();
            let installed: Vec<&str> = listed.lines().map(|line| line.trim_start_matches("./")).collect();
            for file in INSTALLED {
                assert!(installed.contains(&file), "{place}: {file}: {listed}");
            }
            assert!(installed.iter().any(|file| file.starts_with("share/licenses/")), "{place}: {listed}");
            assert!(!listed.contains(".in\n"), "{place}: {listed}");
            let runs = in_shell("sh", directory.path(), &format!("{place}/pkg/usr/bin/nxlock"));
            assert_eq!(runs.exits(0).text().trim(), machine);
        }
    }
}

/// Checks the syntax of a definition, if the program that reads it is installed.
#[expect(clippy::print_stderr, reason = "a check that is skipped says so")]
fn is_read_by(program: &str, words: &[&str], directory: &Path) {
    match Command::new(program).args(words).current_dir(directory).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("skipped: {program} is not installed"),
        read => {
            let read = read.unwrap();
            assert!(read.status.success(), "{program}: {}", String::from_utf8_lossy(&read.stderr));
        }
    }
}

#[test]
fn homebrew_and_nix_read_their_definitions() {
    let directory = release();
    is_read_by("ruby", &["-c", "nxlock.rb"], directory.path());
    is_read_by("nix-instantiate", &["--parse", "flake.nix"], directory.path());
}

#[test]
fn cargo_binstall_finds_the_tarballs_by_cargo_toml() {
    let directory = release();
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let said = |key: &str| {
        let found = manifest.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
        found.unwrap_or_else(|| panic!("no {key}")).trim_matches('"')
    };
    for machine in ["x86_64", "aarch64"] {
        let filled = |key: &str| {
            let text = said(key).replace("{ target }", &format!("{machine}-unknown-linux-musl"));
            let text = text.replace("{ name }", "nxlock").replace("{ bin }", "nxlock").replace("{ version }", VERSION);
            text.replace("{ repo }", env!("CARGO_PKG_REPOSITORY"))
        };
        let (url, binary) = (filled("pkg-url"), filled("bin-dir"));
        let file =
            url.strip_prefix(&format!("{}/releases/download/v{VERSION}/", env!("CARGO_PKG_REPOSITORY"))).unwrap();
        in_shell("sh", directory.path(), &format!("tar -tzf {file} {binary}")).exits(0);
    }
}

#[test]
fn the_signature_of_a_release_is_verified_as_the_manual_says() {
    let directory = tempfile::tempdir().unwrap();
    let run = |script: &str| in_shell("bash", directory.path(), script);
    run(&format!(
        "mkdir .ci release; cp {ROOT}/.ci/sign .ci; ssh-keygen -q -t ed25519 -N '' -f key; echo 'x  y' > release/SHA256SUMS"
    ))
    .exits(0);
    // Nobody could verify it.
    run(".ci/sign key release").exits(1).says("no .ci/allowed_signers");
    run("echo \"nxlock $(cat key.pub)\" > .ci/allowed_signers").exits(0);
    run(".ci/sign key release").exits(0);
    let security = fs::read_to_string(Path::new(ROOT).join(".github/SECURITY.md")).unwrap();
    let verify = security.lines().find(|line| line.starts_with("ssh-keygen -Y verify")).unwrap();
    assert_eq!(recipes::under("INSTALLING").last().map(|recipe| recipe.trim_end()), Some(verify));
    let verify = format!("mv release/* .; {verify}");
    run(&verify).exits(0);
    run(&format!("echo 'z  y' > SHA256SUMS; {}", verify.replace("mv release/* .; ", ""))).exits(255);
    // By a key that may not.
    run("ssh-keygen -q -t ed25519 -N '' -f other; mv SHA256SUMS release; .ci/sign other release").exits(255);
}

#[test]
fn the_files_that_contributing_names_are_there() {
    let text = fs::read_to_string(Path::new(ROOT).join(".github/CONTRIBUTING.md")).unwrap();
    let linked = text.split("](../").skip(1).filter_map(|rest| rest.split(')').next());
    let named = text.split('`').skip(1).step_by(2).filter(|word| {
        let is_path = ["src/", "tests/", "man/", ".ci/"].iter().any(|root| word.starts_with(root));
        is_path && !word.contains([' ', '*'])
    });
    let paths: Vec<&str> = linked.chain(named).collect();
    assert!(paths.len() > 40, "{paths:?}");
    for path in paths {
        assert!(Path::new(ROOT).join(path).exists(), "{path}");
    }
}

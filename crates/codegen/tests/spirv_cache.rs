//! The SPIR-V cache on disk: counts, damage, concurrent writers, and no directory at all.
#![cfg(feature = "spirv")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use tallow_codegen::{ShaderText, SpirvStats, Target, Words, compile_spirv};
use tracing::{Event, Level, Metadata, Subscriber, span};

fn shader(value: u32) -> String {
    format!(
        "#version 450\nlayout(local_size_x = 1) in;\nlayout(set = 0, binding = 0) buffer B {{ uint b[]; }};\nvoid main() {{ b[0] = {value}u; }}\n"
    )
}

fn compile(texts: &[String], dir: &Path) -> (Vec<Words>, SpirvStats) {
    let shaders: Vec<(&str, &str)> = texts.iter().map(|t| ("k", t.as_str())).collect();
    compile_spirv(&shaders, Some(dir)).unwrap()
}

fn counts(stats: SpirvStats) -> (usize, usize) {
    (stats.compiled, stats.cache_hits)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(dir.join("spirv")).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn what_was_compiled_once_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/on/demand");
    let texts: Vec<String> = [1, 2, 1, 3].map(shader).into();
    let (first, stats) = compile(&texts, &dir);
    assert_eq!(counts(stats), (3, 0));
    assert!(stats.millis > 0.0);
    assert_eq!(entries(&dir).len(), 3, "one file a distinct text, no temporary left behind");
    let (second, stats) = compile(&texts, &dir);
    assert_eq!(counts(stats), (0, 3));
    assert_eq!(first, second);
    // One is new, one is for another target.
    assert_eq!(counts(compile(&[shader(3), shader(4)], &dir).1), (1, 1));
    let other = compile_spirv(
        &[ShaderText { target: Target::Vulkan13, ..("k", shader(4).as_str()).into() }],
        Some(&dir),
    )
    .unwrap();
    assert_eq!(counts(other.1), (1, 0));
    assert_eq!(entries(&dir).len(), 5);
}

#[test]
fn a_failure_keeps_what_did_compile() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (shader(1), shader(2).replace("2u", "two"));
    assert!(compile_spirv(&[("bad", bad.as_str()), ("good", good.as_str())], Some(dir.path())).is_err());
    assert_eq!(counts(compile(&[good], dir.path()).1), (0, 1));
}

#[test]
fn damaged_entries_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let text = [shader(7)];
    let (words, _) = compile(&text, dir.path());
    let path = entries(dir.path()).remove(0);
    let good = fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let last = good.len() - 1;
    let damaged = [
        ("magic", flipped(0)),
        ("length", flipped(8)),
        ("high byte of the length", flipped(15)),
        ("digest", flipped(20)),
        ("first word", flipped(48)),
        ("middle", flipped(48 + (last - 48) / 2)),
        ("last byte", flipped(last)),
        ("empty", vec![]),
        ("in the header", good[..30].to_vec()),
        ("header only", good[..48].to_vec()),
        ("one byte short", good[..last].to_vec()),
        ("one byte long", [&good[..], &[0]].concat()),
        ("zeros", vec![0; good.len()]),
    ];
    for (what, bytes) in damaged {
        fs::write(&path, bytes).unwrap();
        let (again, stats) = compile(&text, dir.path());
        assert_eq!(counts(stats), (1, 0), "{what}");
        assert_eq!(again, words, "{what}");
        assert_eq!(fs::read(&path).unwrap(), good, "{what}: repaired");
        assert_eq!(counts(compile(&text, dir.path()).1), (0, 1), "{what}");
    }
    // An entry under another's name.
    compile(&[shader(8)], dir.path());
    let other = entries(dir.path()).into_iter().find(|p| *p != path).unwrap();
    fs::copy(other, &path).unwrap();
    let (again, stats) = compile(&text, dir.path());
    assert_eq!((counts(stats), again), ((1, 0), words));
}

/// A folder where an entry should be can neither be read nor replaced.
#[test]
fn an_entry_that_cannot_be_replaced_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let text = [shader(9)];
    let (words, _) = compile(&text, dir.path());
    let path = entries(dir.path()).remove(0);
    fs::remove_file(&path).unwrap();
    fs::create_dir_all(path.join("folder")).unwrap();
    let (again, stats) = compile(&text, dir.path());
    assert_eq!((counts(stats), again), ((1, 0), words));
    assert_eq!(entries(dir.path()).len(), 1, "no temporary left behind");
}

#[test]
fn threads_may_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..6).map(shader).collect();
    let expected = compile_spirv(&[("k", texts[0].as_str())], None).unwrap().0;
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..3 {
                    let (words, stats) = compile(&texts, dir.path());
                    assert_eq!(stats.compiled + stats.cache_hits, texts.len());
                    assert_eq!(words[0], expected[0]);
                }
            });
        }
    });
    assert_eq!(entries(dir.path()).len(), texts.len());
    assert_eq!(counts(compile(&texts, dir.path()).1), (0, texts.len()));
}

const CHILD_DIR: &str = "TALLOW_TEST_CACHE_DIR";

/// Run by `processes_may_share_a_directory` in processes of its own; alone it has nothing to do.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let dir = Path::new(&dir);
    let texts: Vec<String> = (0..4).map(shader).collect();
    for _ in 0..5 {
        // Damage, so that every round writes while others read and write.
        if let Some(path) = fs::read_dir(dir.join("spirv")).ok().and_then(|mut d| d.next()) {
            fs::write(path.unwrap().path(), b"damaged").ok();
        }
        let (words, _) = compile(&texts, dir);
        for (i, text) in texts.iter().enumerate() {
            let fresh = compile_spirv(&[("k", text.as_str())], None).unwrap().0;
            assert_eq!(words[i], fresh[0], "text {i}");
        }
    }
}

#[test]
fn processes_may_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let start = |_| {
        let mut command = Command::new(&program);
        command.args(["--exact", "child"]).env(CHILD_DIR, dir.path()).spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let texts: Vec<String> = (0..4).map(shader).collect();
    compile(&texts, dir.path());
    assert_eq!(counts(compile(&texts, dir.path()).1), (0, 4));
}

/// Counts warnings of the thread that it is the default of.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        if self.enabled(event.metadata()) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A directory below a regular file cannot be made, whoever asks.
#[test]
fn without_a_directory_it_works_and_warns_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"in the way").unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let texts: Vec<String> = (0..3).map(shader).collect();
    let stats =
        tracing::subscriber::with_default(Warnings(count.clone()), || compile(&texts, &file.join("cache")).1);
    assert_eq!(counts(stats), (3, 0));
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // And where the directory goes away, or becomes a file, later: several stores, one warning.
    compile(&texts[..1], dir.path());
    fs::remove_dir_all(dir.path().join("spirv")).unwrap();
    fs::write(dir.path().join("spirv"), b"in the way").unwrap();
    let stats = tracing::subscriber::with_default(Warnings(count.clone()), || compile(&texts, dir.path()).1);
    assert_eq!(counts(stats), (3, 0));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

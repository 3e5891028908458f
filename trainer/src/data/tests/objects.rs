//! Tests of token files of object stores, through the cache of the node.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::remote::RemoteOptions;
use tempfile::TempDir;

use super::{config, folder, index, llmc, raw};
use crate::data::{CacheOptions, DataError, Locations, Source};
use support::s3::{self, Fault, Kind, Operation, S3Server};

/// Server, cache, and runs that use them.
struct Node {
    server: S3Server,
    folder: TempDir,
    limit_bytes: u64,
}

impl Node {
    fn new() -> Self {
        Self { server: S3Server::start(), folder: folder(), limit_bytes: u64::MAX }
    }

    fn store(&self, name: &str, bytes: &[u8]) {
        fs::write(self.server.file(name), bytes).unwrap();
    }

    /// Returns the digest of these objects as training data.
    fn open(&self, names: &[&str]) -> Result<String, DataError> {
        let urls: Vec<_> = names.iter().map(|name| self.server.url(name)).collect();
        let urls: Vec<_> = urls.iter().map(String::as_str).collect();
        self.source(&config(&urls, &[], 1)).map(|source| source.digest().unwrap().to_owned())
    }

    fn source(&self, config: &models::workload::DataConfig) -> Result<Source, DataError> {
        let settings = self.server.environment().map(|(name, value)| (name.to_owned(), value));
        let remote = RemoteOptions {
            patience: Duration::from_secs(60), // the server is not optimised, and hashes a lot
            settings: settings.to_vec(),
            ..Default::default()
        };
        let folder = Some(self.folder.path().join("cache"));
        let cache = CacheOptions { folder, limit_bytes: self.limit_bytes, remote };
        Source::open(config, 1000, &Locations { base: self.folder.path().to_owned(), cache })
    }

    fn error(&self, names: &[&str]) -> String {
        self.open(names).unwrap_err().to_string()
    }

    /// Returns the number of times that an object was read.
    fn downloads(&self, name: &str) -> usize {
        let line = format!("GET /{}/{name}", s3::BUCKET);
        self.server.requests().iter().filter(|request| **request == line).count()
    }

    /// Returns the path of a file anywhere in the cache.
    fn cached(&self, name: &str) -> Option<PathBuf> {
        let folders = fs::read_dir(self.folder.path().join("cache/files")).unwrap();
        folders.map(|folder| folder.unwrap().path().join(name)).find(|path| path.exists())
    }
}

/// Returns the digest of the same content as local files.
fn local_digest(files: &[(&str, &[u8])]) -> String {
    let folder = folder();
    files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
    let config = config(&[files[0].0], &[], 1);
    let source = Source::open(&config, 1000, &Locations::new(folder.path())).unwrap();
    source.digest().unwrap().to_owned()
}

#[test]
fn objects_are_downloaded_once_and_are_the_same_data_as_files() {
    let node = Node::new();
    let bytes = raw(0..900);
    node.store("a.bin", &bytes);
    let digest = node.open(&["a.bin"]).unwrap();
    assert_eq!(digest, local_digest(&[("a.bin", &bytes)]));
    assert_eq!(node.open(&["a.bin"]).unwrap(), digest);
    assert_eq!(node.downloads("a.bin"), 1);
}

/// Protects against another user of the node who may write to the folder.
#[test]
fn links_in_the_cache_are_not_followed() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    let digest = node.open(&["a.bin"]).unwrap();
    let victim = node.folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let file = node.cached("a.bin").unwrap();
    let temporary = file.with_file_name("a.bin.tmp");
    for planted in [&temporary, &file] {
        let _ = fs::remove_file(&file); // it is downloaded again
        symlink(&victim, planted).unwrap();
        assert_eq!(node.open(&["a.bin"]).unwrap(), digest);
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
    }
    let lock = node.folder.path().join("cache/lock");
    fs::remove_file(&lock).unwrap();
    symlink(&victim, &lock).unwrap();
    let error = node.error(&["a.bin"]);
    assert!(error.contains("lock: cannot open: expected a regular file"), "{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

/// Allows for another run of the node that reads its data for as long as it likes.
#[test]
fn what_is_there_is_opened_beside_another_run() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    let digest = node.open(&["a.bin"]).unwrap();
    let lock = File::open(node.folder.path().join("cache/lock")).unwrap();
    lock.lock_shared().unwrap();
    std::thread::scope(|scope| {
        let (sender, opened) = std::sync::mpsc::channel();
        scope.spawn(move || sender.send(node.open(&["a.bin"]).unwrap()));
        let opened = opened.recv_timeout(Duration::from_secs(20));
        lock.unlock().unwrap();
        assert_eq!(opened, Ok(digest));
    });
}

/// Covers files that killed downloads leave.
#[test]
fn files_without_an_entry_are_removed() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    node.store("b.bin", &raw(0..900));
    node.open(&["a.bin"]).unwrap();
    let file = node.cached("a.bin").unwrap();
    let users = node.folder.path().join("cache/files/mine/a.bin");
    fs::create_dir(users.parent().unwrap()).unwrap();
    let orphans = ["a.bin.tmp", "c.bin"].map(|name| file.with_file_name(name));
    orphans.iter().chain([&users]).for_each(|path| fs::write(path, [0; 100]).unwrap());
    node.open(&["b.bin"]).unwrap();
    assert_eq!(orphans.map(|orphan| orphan.exists()), [false; 2]);
    assert!(file.exists() && users.exists());
    // Another user of the node may write to the folder.
    symlink(users.parent().unwrap(), node.folder.path().join("cache/files/0123456789abcdef"))
        .unwrap();
    fs::create_dir(file.with_file_name("folder")).unwrap();
    node.store("c.bin", &raw(0..900));
    node.open(&["c.bin"]).unwrap();
    assert!(users.exists());
}

/// Simulates the answer of S3 for an absent object to a role that may not list the bucket.
#[test]
fn an_index_that_is_denied_is_taken_for_absent() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    let denied = Kind::Answer { status: 403, code: "AccessDenied" };
    node.server.begin(Fault::always(Operation::Absent, denied.clone()));
    assert_eq!(node.open(&["a.bin"]).unwrap(), local_digest(&[("a.bin", &raw(0..900))]));
    assert_eq!(node.server.end_fault(), 2, "the index, and what surely does not exist");
    // An object that exists and may not be read is not absent.
    node.server.begin(Fault { suffix: ".idx", ..Fault::always(Operation::Any, denied) });
    let error = node.error(&["a.bin"]);
    assert!(error.starts_with("s3://bucket/a.idx: cannot stat: "), "{error}");
}

#[test]
fn ranks_that_start_together_download_once() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..4).map(|_| scope.spawn(|| node.open(&["a.bin"]))).collect();
        ranks.into_iter().for_each(|rank| drop(rank.join().unwrap().unwrap()));
    });
    assert_eq!(node.downloads("a.bin"), 1);
}

#[test]
fn a_download_of_several_ranges_is_the_object() {
    let node = Node::new();
    let tokens = (0..9_000_000_u32).map(|token| (token % 997) as u16); // 18 MB, two ranges
    let bytes = raw(tokens);
    node.store("large.bin", &bytes);
    assert_eq!(node.open(&["large.bin"]).unwrap(), local_digest(&[("large.bin", &bytes)]));
    assert_eq!(node.downloads("large.bin"), 2);
}

#[test]
fn a_damaged_file_of_the_cache_is_fetched_again() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    let digest = node.open(&["a.bin"]).unwrap();
    let damages: [fn(&mut Vec<u8>); 3] =
        [|bytes| bytes[77] ^= 1, |bytes| bytes.truncate(10), |bytes| bytes.push(0)];
    for (round, damage) in damages.into_iter().enumerate() {
        let path = node.cached("a.bin").unwrap();
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        assert_eq!(node.open(&["a.bin"]).unwrap(), digest);
        assert_eq!(node.downloads("a.bin"), round + 2);
    }
    fs::remove_file(node.cached("a.bin").unwrap()).unwrap();
    assert_eq!(node.open(&["a.bin"]).unwrap(), digest);
}

/// Lets one rank download the file: the file that the other ranks had opened is then gone.
#[test]
fn ranks_that_find_the_same_damage_go_on() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    let digest = node.open(&["a.bin"]).unwrap();
    for _ in 0..10 {
        let path = node.cached("a.bin").unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[77] ^= 1;
        fs::write(&path, bytes).unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..4).map(|_| scope.spawn(|| node.open(&["a.bin"]))).collect();
            for rank in ranks {
                assert_eq!(rank.join().unwrap().unwrap(), digest);
            }
        });
    }
}

#[test]
fn a_damaged_index_is_fetched_again() {
    let node = Node::new();
    node.store("m.bin", &raw(0..900));
    node.store("m.idx", &index(8, &[900], &[0], &[0, 1]));
    let digest = node.open(&["m.bin"]).unwrap();
    let path = node.cached("m.idx").unwrap();
    fs::write(&path, index(8, &[450], &[0], &[0, 1])).unwrap(); // valid, and of the same size
    assert_eq!(node.open(&["m.bin"]).unwrap(), digest);
    assert_eq!(fs::read(path).unwrap(), index(8, &[900], &[0], &[0, 1]));
}

#[test]
fn a_changed_object_is_fetched_again() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    let first = node.open(&["a.bin"]).unwrap();
    node.store("a.bin", &raw((0..900).rev())); // of the same size
    let second = node.open(&["a.bin"]).unwrap();
    assert_ne!(first, second);
    assert_eq!(second, local_digest(&[("a.bin", &raw((0..900).rev()))]));
}

#[test]
fn a_megatron_file_comes_with_its_index() {
    let node = Node::new();
    let tokens = raw(0..900);
    let index = index(8, &[900], &[0], &[0, 1]);
    node.store("m.bin", &tokens);
    node.store("m.idx", &index);
    let digest = node.open(&["m.bin"]).unwrap();
    assert_eq!(digest, local_digest(&[("m.bin", &tokens), ("m.idx", &index)]));
    assert_eq!(node.open(&["m.idx"]).unwrap(), digest);
    assert!(node.cached("m.idx").is_some());
    fs::remove_file(node.server.file("m.idx")).unwrap();
    node.open(&["m.bin"]).unwrap();
    assert!(node.cached("m.idx").is_none(), "would be taken for the index of other tokens");
}

#[test]
fn what_was_not_used_for_the_longest_time_makes_room() {
    let mut node = Node::new();
    for name in ["a.bin", "b.bin", "c.bin"] {
        node.store(name, &raw(0..500)); // 1000 bytes
    }
    node.limit_bytes = 2500;
    for name in ["a.bin", "b.bin", "a.bin", "c.bin"] {
        node.open(&[name]).unwrap();
        std::thread::sleep(Duration::from_millis(20)); // times of files are that coarse
    }
    let kept = ["a.bin", "b.bin", "c.bin"].map(|name| node.cached(name).is_some());
    assert_eq!(kept, [true, false, true]);
    let error = node.error(&["a.bin", "b.bin", "c.bin"]);
    assert!(error.contains("expected run.data_cache_bytes of at least 3000"), "{error}");
    assert!(node.cached("a.bin").is_some(), "nothing is removed in vain");
}

#[test]
fn errors_name_the_url() {
    let node = Node::new();
    let error = node.error(&["none.bin"]);
    assert_eq!(error, "s3://bucket/none.bin: cannot stat: no such object or bucket");
    for name in ["", "folder/"] {
        let error = node.error(&[name]);
        assert!(error.ends_with("cannot use the object: expected scheme://bucket/key"), "{error}");
    }
    node.store("large.bin", &raw([5, 1000]));
    let error = node.error(&["large.bin"]);
    assert!(error.starts_with("s3://bucket/large.bin: byte 2: expected token ids"), "{error}");
    node.store("short.bin", &llmc(20_240_520, 1, 100, &[0; 10]));
    let error = node.error(&["short.bin"]);
    assert!(error.starts_with("s3://bucket/short.bin: truncated"), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let node = Node::new();
    node.store("a.bin", &raw(0..900));
    fs::write(node.folder.path().join("cache"), "a file").unwrap();
    let error = node.error(&["a.bin"]);
    let path = Path::new("cache/objects").display().to_string();
    assert!(error.contains(&path) || error.contains("cache: "), "{error}");
}

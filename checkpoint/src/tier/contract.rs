//! Contract of every tier, as functions that check its promises over `&dyn Tier`.
//!
//! Each case has a folder of its own and removes it. A broken promise is a panic that names it.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use super::{Entry, Tier};
use record::files::{IoError, Published};

/// Size limit that no file here exceeds.
const READ_BYTES_MAX: u64 = 1 << 30;

/// The whole suite, on a tier that is empty, and is so again afterwards. `buffer_bytes` is how much
/// an upload collects before it writes.
///
/// # Panics
/// When a promise is broken.
pub fn run_all(tier: &dyn Tier, buffer_bytes: usize) {
    what_does_not_exist_is_not_found(tier);
    files_of_all_sizes_come_back(tier, buffer_bytes);
    an_unfinished_upload_is_invisible_and_leaves_nothing(tier, buffer_bytes);
    readers_see_the_old_file_or_the_new_one(tier);
    publish_never_replaces(tier);
    a_key_has_one_publisher(tier);
    ranges_are_read(tier);
    a_file_that_is_too_large_is_refused(tier);
    listings_are_sorted_and_of_one_level(tier);
    delete_removes_one_file(tier);
    delete_folder_removes_one_folder(tier);
    the_last_file_outlives_the_others(tier);
    assert_eq!(tier.list("").expect("lists"), [], "the suite has removed everything");
}

/// Reading has its kind of error, listing and deleting have none.
///
/// # Panics
/// When a promise is broken.
pub fn what_does_not_exist_is_not_found(tier: &dyn Tier) {
    for key in ["not-found", "not/found/at-all"] {
        let is_not_found = |error: IoError| {
            assert_eq!(error.source.kind(), ErrorKind::NotFound, "{error}");
            assert_eq!(error.path, tier.path(key), "the error names the file");
        };
        is_not_found(tier.read(key, READ_BYTES_MAX).expect_err("nothing to read"));
        is_not_found(tier.open(key).expect_err("nothing to open"));
        assert!(!tier.exists(key).expect("tells"), "{key} exists");
        assert_eq!(tier.list(key).expect("an absent folder is empty"), []);
        tier.delete(key).expect("deleting what is absent");
        tier.delete_folder(key, "marker").expect("deleting an absent folder");
    }
}

/// Checks every way of writing, in folders that do not exist before, with sizes around those of
/// blocks and buffers and in pieces that do not fit into them.
///
/// # Panics
/// When a promise is broken.
pub fn files_of_all_sizes_come_back(tier: &dyn Tier, buffer_bytes: usize) {
    for blocks in [0, 4096, buffer_bytes, 2 * buffer_bytes] {
        for size in [blocks.saturating_sub(1), blocks, blocks + 1] {
            let data = content(size, size as u64);
            for piece in [4095, size.max(1)] {
                let key = format!("sizes/d00/created/{size}-{piece}");
                upload(tier, &key, data.chunks(piece));
                assert!(tier.read(&key, READ_BYTES_MAX).expect("reads") == data, "{key}");
                assert!(tier.exists(&key).expect("tells"), "{key}");
                tier.delete(&key).expect("deletes");
            }
        }
    }
    for size in [0, 1, 4095, 4096, 4097, 300_000] {
        let data = content(size, size as u64);
        let key = format!("sizes/d01/replaced/{size}");
        tier.replace(&key, &data).expect("creates");
        assert!(tier.read(&key, READ_BYTES_MAX).expect("reads") == data, "{key}");
        let key = format!("sizes/d02/published/{size}");
        assert_eq!(publish(tier, &key, &data), Published::Ours);
        assert!(tier.read(&key, READ_BYTES_MAX).expect("reads") == data, "{key}");
    }
    clear(tier, "sizes");
}

/// Checks that no reader finds an unfinished upload, and that a dropped one leaves neither file nor
/// entry.
///
/// # Panics
/// When a promise is broken.
pub fn an_unfinished_upload_is_invisible_and_leaves_nothing(tier: &dyn Tier, buffer_bytes: usize) {
    let key = "unfinished/d00/shard";
    for size in [0, 1, buffer_bytes + 1] {
        let mut unfinished = tier.create(key).expect("starts");
        unfinished.write(&content(size, 1)).expect("writes");
        assert!(!tier.exists(key).expect("tells"), "{size} bytes of it are visible");
        assert_eq!(
            tier.read(key, READ_BYTES_MAX).expect_err("not finished").source.kind(),
            ErrorKind::NotFound
        );
        let listed = tier.list("unfinished/d00").expect("lists");
        assert!(listed.iter().all(|entry| entry.name != "shard"), "{listed:?}");
        drop(unfinished);
        assert_eq!(tier.list("unfinished/d00").expect("lists"), [], "after {size} bytes");
    }
    upload(tier, key, [&b"complete"[..]].into_iter());
    assert_eq!(tier.read(key, READ_BYTES_MAX).expect("reads"), b"complete");
    clear(tier, "unfinished");
}

/// Checks that while a file is replaced, each reader gets all of one version.
///
/// # Panics
/// When a promise is broken.
pub fn readers_see_the_old_file_or_the_new_one(tier: &dyn Tier) {
    let key = "replaced/LATEST";
    let versions = [content(300_000, 1), content(100, 2)];
    tier.replace(key, &versions[0]).expect("creates");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Relaxed) {
                let found = tier.read(key, READ_BYTES_MAX).expect("it always exists");
                assert!(versions.contains(&found), "{} bytes of neither version", found.len());
            }
        });
        for round in 1..=40 {
            tier.replace(key, &versions[round % 2]).expect("replaces");
        }
        done.store(true, Relaxed);
        reader.join().expect("each read is one version");
    });
    clear(tier, "replaced");
}

/// A second publisher finds the key taken. The same bytes are the first one, whose answer was lost.
///
/// # Panics
/// When a promise is broken.
pub fn publish_never_replaces(tier: &dyn Tier) {
    let key = "published/MANIFEST.json";
    assert_eq!(publish(tier, key, b"first"), Published::Ours);
    assert_eq!(publish(tier, key, b"first"), Published::Ours, "its answer was lost");
    assert_eq!(publish(tier, key, b"other"), Published::Taken);
    assert_eq!(publish(tier, key, b"firs"), Published::Taken);
    assert_eq!(publish(tier, key, b""), Published::Taken);
    assert_eq!(tier.read(key, READ_BYTES_MAX).expect("reads"), b"first");
    let names = tier.list("published").expect("lists");
    assert_eq!(names, [entry("MANIFEST.json", false)], "nothing else stays");
    clear(tier, "published");
}

/// Checks that of several publishers at once one succeeds, and the file is its own.
///
/// # Panics
/// When a promise is broken.
pub fn a_key_has_one_publisher(tier: &dyn Tier) {
    for round in 0..8 {
        let key = format!("competed/{round}");
        let publish_own = |number: u64| publish(tier, &key, &content(5000, number));
        let outcomes: Vec<Published> = thread::scope(|scope| {
            let publishers: Vec<_> =
                (0..8).map(|number| scope.spawn(move || publish_own(number))).collect();
            publishers.into_iter().map(|thread| thread.join().expect("publishes")).collect()
        });
        let is_ours = |outcome: &&Published| **outcome == Published::Ours;
        assert_eq!(outcomes.iter().filter(is_ours).count(), 1, "{outcomes:?}");
        let again: Vec<Published> = (0..8).map(publish_own).collect();
        assert_eq!(again, outcomes, "calling again tells the same");
    }
    clear(tier, "competed");
}

/// Checks reads of any range of a file, and the error behind its end.
///
/// # Panics
/// When a promise is broken.
pub fn ranges_are_read(tier: &dyn Tier) {
    let data = content(10_000, 3);
    tier.replace("ranges/shard", &data).expect("creates");
    let reader = tier.open("ranges/shard").expect("opens");
    assert_eq!(reader.size_bytes(), 10_000);
    let age = SystemTime::now().duration_since(reader.modified()).unwrap_or_default();
    assert!(age < Duration::from_secs(3600), "written {age:?} ago");
    for (offset, size) in [(0, 10_000), (0, 1), (4096, 4096), (1, 4097), (9_999, 1), (10_000, 0)] {
        let mut found = vec![0; size];
        reader.read_exact_at(&mut found, offset as u64).expect("reads");
        assert!(found == data[offset..offset + size], "{size} bytes at {offset}");
    }
    for (offset, size) in [(9_999, 2), (10_000, 1), (20_000, 10)] {
        let error = reader.read_exact_at(&mut vec![0; size], offset).expect_err("behind the end");
        assert_eq!(error.source.kind(), ErrorKind::UnexpectedEof, "{error}");
        assert_eq!(error.path, tier.path("ranges/shard"), "the error names the file");
    }
    tier.replace("ranges/empty", b"").expect("creates");
    assert_eq!(tier.open("ranges/empty").expect("opens").size_bytes(), 0);
    clear(tier, "ranges");
}

/// A file of the limit is read, and a larger one has its kind of error, with both sizes.
///
/// # Panics
/// When a promise is broken.
pub fn a_file_that_is_too_large_is_refused(tier: &dyn Tier) {
    let data = content(300_000, 4);
    tier.replace("limited/MANIFEST.json", &data).expect("creates");
    let read = |bytes_max| tier.read("limited/MANIFEST.json", bytes_max);
    assert!(read(300_000).expect("reads") == data);
    for bytes_max in [299_999, 1, 0] {
        let error = read(bytes_max).expect_err("too large");
        assert_eq!(error.source.kind(), ErrorKind::InvalidData, "{error}");
        let expected = format!("expected at most {bytes_max} bytes, found 300000");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    clear(tier, "limited");
}

/// Checks listings of files and folders of exactly one level, also where a name is the prefix of
/// another.
///
/// # Panics
/// When a promise is broken.
pub fn listings_are_sorted_and_of_one_level(tier: &dyn Tier) {
    for key in ["s1/z", "s1/d/deep/er", "s1/d.x", "s1/d-/x", "s1/a", "s10/x", "s1.json"] {
        tier.replace(&format!("listed/{key}"), b"x").expect("creates");
    }
    let inside = tier.list("listed/s1").expect("lists");
    let expected = [entry("a", false), entry("d", true), entry("d-", true), entry("d.x", false)];
    assert_eq!(inside, [&expected[..], &[entry("z", false)]].concat());
    let above = tier.list("listed").expect("lists");
    assert_eq!(above, [entry("s1", true), entry("s1.json", false), entry("s10", true)]);
    assert_eq!(tier.list("").expect("lists"), [entry("listed", true)]);
    clear(tier, "listed");
}

/// Checks that nothing else is removed, and that removing it again succeeds.
///
/// # Panics
/// When a promise is broken.
pub fn delete_removes_one_file(tier: &dyn Tier) {
    for key in ["deleted/x", "deleted/x.json", "deleted/y"] {
        tier.replace(key, b"x").expect("creates");
    }
    for _ in 0..2 {
        tier.delete("deleted/x").expect("deletes");
        assert!(!tier.exists("deleted/x").expect("tells"));
        let left = tier.list("deleted").expect("lists");
        assert_eq!(left, [entry("x.json", false), entry("y", false)]);
    }
    assert_eq!(publish(tier, "deleted/x", b"new"), Published::Ours, "the key is free again");
    clear(tier, "deleted");
}

/// Checks that all levels of it are removed, and nothing of folders whose names begin like it.
///
/// # Panics
/// When a promise is broken.
pub fn delete_folder_removes_one_folder(tier: &dyn Tier) {
    for key in ["s1/d00/a", "s1/d01/deep/b", "s1/marker", "s1/c", "s10/a", "s1.json"] {
        tier.replace(&format!("folders/{key}"), b"x").expect("creates");
    }
    for _ in 0..2 {
        tier.delete_folder("folders/s1", "marker").expect("deletes");
        assert_eq!(tier.list("folders/s1").expect("lists"), []);
        let left = tier.list("folders").expect("lists");
        assert_eq!(left, [entry("s1.json", false), entry("s10", true)]);
    }
    clear(tier, "folders");
}

/// Checks that whoever finds the marker gone finds the rest gone.
///
/// # Panics
/// When a promise is broken.
pub fn the_last_file_outlives_the_others(tier: &dyn Tier) {
    for _ in 0..4 {
        for number in 0..60 {
            tier.replace(&format!("marked/s1/d{:02}/{number}", number % 3), b"x").expect("creates");
        }
        tier.replace("marked/s1/marker", b"x").expect("creates");
        thread::scope(|scope| {
            let observer = scope.spawn(|| {
                while tier.exists("marked/s1/marker").expect("tells") {}
                tier.list("marked/s1").expect("lists")
            });
            tier.delete_folder("marked/s1", "marker").expect("deletes");
            let left = observer.join().expect("observes");
            assert_eq!(left, [], "left without the marker");
        });
    }
    clear(tier, "marked");
}

fn upload<'a>(tier: &dyn Tier, key: &str, pieces: impl Iterator<Item = &'a [u8]>) {
    let mut upload = tier.create(key).expect("starts");
    pieces.for_each(|piece| upload.write(piece).expect("writes"));
    upload.finish().expect("finishes");
}

fn publish(tier: &dyn Tier, key: &str, bytes: &[u8]) -> Published {
    let mut midway = 0;
    let published = tier.publish(key, bytes, &mut || midway += 1).expect("publishes");
    assert!(midway <= 1, "midway was called {midway} times");
    published
}

fn entry(name: &str, is_folder: bool) -> Entry {
    Entry { name: name.to_owned(), is_folder }
}

/// Bytes that differ at all distances that matter here, and between seeds.
fn content(size: usize, seed: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 ^ seed as u8;
    (0..size as u64).map(byte).collect()
}

fn clear(tier: &dyn Tier, folder: &str) {
    tier.delete_folder(folder, "marker").expect("deletes");
}

//! Files that other users plant in a run's folder: links are not followed, and anything but a file
//! is refused at once. New files are of the user and the group.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, mknodat};
use support::{Finished, Folder, run, text};

const PRECIOUS: &str = "precious";

/// Trains up to a step, from the last checkpoint on.
fn train(folder: &Folder, steps: &str) -> Finished {
    let last = format!("{steps}..{steps}");
    let every = ["--checkpoint-every", "2steps", "--set", "telemetry.tensorboard=true"];
    folder.train(&[&["--steps", steps, "--trace-steps", &last], &every[..]].concat())
}

/// Something that has the name of a file.
struct Plant {
    /// Parts of the error of who needs the file.
    error: &'static str,
    put: fn(victim: &Path, path: &Path),
}

const LINK: Plant = Plant {
    error: "expected a regular file, it is a symbolic link",
    put: |victim, path| symlink(victim, path).unwrap(),
};

const FIFO: Plant = Plant {
    error: "expected a regular file, it is a FIFO",
    put: |_, path| mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap(),
};

const HUGE: Plant = Plant {
    error: "found 3221225472",
    put: |_, path| fs::File::create(path).unwrap().set_len(3 << 30).unwrap(),
};

/// Files that a second attempt writes.
const REPLACED: [&str; 11] = [
    "record.json",
    "record.json.tmp",
    "config.toml",
    "config.toml.tmp",
    "attempts/002.json.tmp",
    "checkpoints/LATEST",
    "checkpoints/LATEST.tmp",
    "tensorboard/events.out.tfevents.attempt-000002",
    "trace/steps-4-4.json",
    "trace/steps-4-4.json.tmp",
    "steps/r000000.2.damaged",
];

#[test]
fn links_at_the_names_of_new_files_are_replaced_and_not_followed() {
    let folder = Folder::new();
    train(&folder, "2").expect(0);
    fs::create_dir_all(folder.path().join("trace")).unwrap();
    let victim = |name: &str| folder.sibling(&name.replace('/', "-"));
    for name in REPLACED {
        let path = folder.path().join(name);
        drop(fs::remove_file(&path)); // of the first attempt
        fs::write(victim(name), PRECIOUS).unwrap();
        (LINK.put)(&victim(name), &path);
    }
    train(&folder, "4").expect(0);
    for name in REPLACED {
        assert_eq!(fs::read_to_string(victim(name)).unwrap(), PRECIOUS, "{name}");
        let path = folder.path().join(name);
        let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        assert_eq!(is_link, name.ends_with(".damaged"), "{name} is written by nobody here");
    }
    assert_eq!(folder.record()["status"], "complete");
}

/// Files that a second attempt reads or appends to, and the plants that it refuses.
const REFUSED: [(&str, &[Plant]); 4] = [
    ("lock", &[LINK, FIFO]),
    ("identity.json", &[LINK, FIFO, HUGE]),
    ("attempts/001.json", &[LINK, FIFO, HUGE]),
    ("steps/r000000.jsonl", &[LINK, FIFO]),
];

#[test]
fn what_is_not_a_file_of_a_run_is_refused_at_once() {
    let folder = Folder::new();
    train(&folder, "2").expect(0);
    for (name, plants) in REFUSED {
        let path = folder.path().join(name);
        let whole = folder.sibling("whole");
        fs::rename(&path, &whole).unwrap();
        let content = fs::read(&whole).unwrap();
        for plant in plants {
            (plant.put)(&whole, &path);
            let finished = train(&folder, "4").expect(2).expect_stderr(&[plant.error]);
            assert!(finished.stderr.contains(name), "{name}: {}", finished.stderr);
            assert_eq!(fs::read(&whole).unwrap(), content, "{name}");
            fs::remove_file(&path).unwrap();
        }
        fs::rename(&whole, &path).unwrap();
    }
    train(&folder, "4").expect(0);
}

#[test]
fn commands_that_read_a_run_refuse_what_is_not_a_file() {
    let folder = Folder::new();
    train(&folder, "2").expect(0);
    let [config, record] = ["config.toml", "record.json"].map(|name| folder.path().join(name));
    for (path, commands) in [(&config, &["ckpt", "export"][..]), (&record, &["report", "compare"])]
    {
        let whole = folder.sibling("whole");
        fs::rename(path, &whole).unwrap();
        for plant in [LINK, HUGE] {
            (plant.put)(&whole, path);
            for command in commands {
                let finished = read_by(command, &folder);
                assert_ne!(finished.code, 0, "{command}: {finished:?}");
                finished.expect_stderr(&[plant.error]);
            }
            fs::remove_file(path).unwrap();
        }
        fs::rename(&whole, path).unwrap();
    }
}

fn read_by(command: &str, folder: &Folder) -> Finished {
    let out = folder.text();
    match command {
        "ckpt" => run(&["ckpt", "ls", &out]),
        "export" => run(&["export", &out, "--out", &text(&folder.sibling("exported"))]),
        "report" => run(&["report", &out]),
        _ => run(&["compare", &out, &out]),
    }
}

/// Names a link as a user may: `latest.json`, say.
#[test]
fn a_record_that_the_user_names_may_be_a_link() {
    let folder = Folder::new();
    train(&folder, "2").expect(0);
    let link = folder.sibling("latest.json");
    symlink(folder.path().join("record.json"), &link).unwrap();
    run(&["report", &text(&link)]).expect(0);
}

/// 0640 and 0750, unless the umask allows less.
#[test]
fn files_of_a_run_are_of_the_user_and_the_group() {
    let folder = Folder::new();
    train(&folder, "4").expect(0);
    let mut paths = vec![folder.path()];
    let mut seen = 0;
    while let Some(path) = paths.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mode = metadata.permissions().mode() & 0o777;
        let allowed = if metadata.is_dir() { 0o750 } else { 0o640 };
        assert_eq!(mode & !allowed, 0, "{}: {mode:o}", path.display());
        if metadata.is_dir() {
            paths.extend(entries(&path));
        }
        seen += 1;
    }
    assert!(seen > 15, "of record, configuration, steps, attempts, checkpoints, trace: {seen}");
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())
}

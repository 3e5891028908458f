//! `yardstick ckpt`: the checkpoints of a run on all of its tiers.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::remote::{Remote, RemoteOptions};
use checkpoint::tier::{ObjectTier, Tier};
use serde_json::Value;
use support::s3::S3Server;
use support::{Finished, Folder, finish, run, yardstick};

/// A run of one rank with a tier of its node and a shared one.
struct Run {
    folder: Folder,
}

impl Run {
    fn new() -> Self {
        let run = Self { folder: Folder::new() };
        run.train("8");
        run
    }

    fn train(&self, steps: &str) {
        let [nvme, shared] = ["nvme", "shared"].map(|tier| {
            let path = self.folder.sibling(tier);
            format!("checkpoint.{tier}.path={}", path.display())
        });
        let set = ["--set", &nvme, "--set", &shared];
        let steps = ["--steps", steps, "--threads", "1", "--checkpoint-every", "4steps"];
        self.folder.train(&[&steps[..], &set].concat()).expect(0);
    }

    fn ckpt(&self, command: &str, flags: &[&str]) -> Finished {
        run(&[&["ckpt", command, &self.folder.text()], flags].concat())
    }

    fn listed(&self) -> Vec<Value> {
        let listed = self.ckpt("ls", &["--json"]).expect(0).stdout;
        serde_json::from_str(&listed).unwrap()
    }

    /// Names of the checkpoints, newest first.
    fn names(&self) -> Vec<String> {
        self.listed().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The folder of the run on a tier.
    fn tier(&self, name: &str) -> PathBuf {
        fs::read_dir(self.folder.sibling(name)).unwrap().next().unwrap().unwrap().path()
    }
}

/// Tiers of a checkpoint in a listing that have it committed.
fn durable_on(row: &Value) -> Vec<&str> {
    let tiers = row["tiers"].as_array().unwrap().iter();
    let durable = tiers.filter(|copy| copy["state"] == "committed");
    durable.map(|copy| copy["tier"].as_str().unwrap()).collect()
}

/// All files below a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn all_tiers_are_listed_and_verified() {
    let run = Run::new();
    let listed = run.listed();
    assert_eq!(listed[0]["step"], 8);
    assert_eq!(durable_on(&listed[0]), ["nvme", "shared"]);
    assert!(listed[0]["age_seconds"].as_u64().unwrap() < 3600);
    run.ckpt("ls", &[]).expect(0).expect_stdout(&["durable on", "nvme, shared"]);
    run.ckpt("ls", &["--tier", "object"]).expect(2).expect_stderr(&["nvme, shared"]);
    run.ckpt("verify", &[]).expect(0).expect_stdout(&["on nvme: ok", "on shared: ok"]);
    fs::remove_dir_all(run.folder.sibling("nvme")).unwrap();
    let alone = run.ckpt("ls", &[]).expect(0).expect_stderr(&["tier nvme: no checkpoint"]);
    assert!(!alone.stdout.contains("nvme"), "{}", alone.stdout);
    fs::remove_dir_all(run.folder.sibling("shared")).unwrap();
    run.ckpt("ls", &[]).expect(6).expect_stderr(&["no tier has a checkpoint"]);
}

#[test]
fn a_pinned_checkpoint_stays_on_every_tier() {
    let run = Run::new();
    let pinned = run.names().pop().unwrap();
    run.ckpt("pin", &[&pinned]).expect(0);
    run.ckpt("pin", &["s000000009-a0001-00000000"]).expect(6);
    run.train("20");
    let listed = run.listed();
    let found = listed.iter().find(|row| row["name"] == *pinned).unwrap();
    assert_eq!(found["pinned"], true);
    // The two newest and the pinned one; a slow copy leaves an older one on the shared tier.
    assert!((3..=4).contains(&listed.len()), "{listed:?}");
    run.ckpt("ls", &[]).expect(0).expect_stdout(&["  pinned"]);
    run.ckpt("unpin", &[&pinned]).expect(0);
    run.train("24");
    assert!(!run.names().contains(&pinned));
}

#[test]
fn a_checkpoint_is_shown_planned_and_copied() {
    let run = Run::new();
    let name = run.names().swap_remove(0);
    let shown = run.ckpt("show", &[&name, "--json"]).expect(0).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["step"], &shown["world"]), (&8.into(), &1.into()));
    assert_eq!(shown["parent"], run.names()[1]);
    assert_eq!(shown["tiers"][1]["contents"]["files"][0]["file"], "d00/r00000-000.safetensors");
    run.ckpt("show", &[&name]).expect(0).expect_stdout(&["workload", "tensors", "committed"]);

    let plan = |flags: &[&str]| {
        let plan = run.ckpt("plan", &[&["--json"], flags].concat()).expect(0).stdout;
        serde_json::from_str::<Value>(&plan).unwrap()
    };
    let near = plan(&["--ranks", "2"]);
    assert_eq!((&near["checkpoint"], &near["saved_by"]), (&name.clone().into(), &1.into()));
    let bytes = near["bytes"].as_u64().unwrap();
    let read = |plan: &Value| [0, 1].map(|tier| plan["sources"][tier]["read_bytes"].as_u64());
    assert_eq!(read(&near), [Some(2 * bytes), Some(0)]);
    assert_eq!(read(&plan(&["--ranks", "3", "--ranks-here", "1"])), [bytes, 2 * bytes].map(Some));
    run.ckpt("plan", &["--ranks", "2"]).expect(0).expect_stdout(&["nvme", "by peers"]);

    fs::remove_dir_all(run.folder.sibling("shared")).unwrap();
    let alone = plan(&["--ranks", "2", "--ranks-here", "1"]);
    assert_eq!(alone["sources"][0]["from_peers_bytes"], bytes);
    run.ckpt("promote", &[&name, "--to", "nvme"]).expect(2).expect_stderr(&["shared tier"]);
    let copied = run.ckpt("promote", &[&name, "--to", "shared"]).expect(0);
    copied.expect_stdout(&["copied from nvme to shared"]);
    assert_eq!(durable_on(&run.listed()[0]), ["nvme", "shared"]);
    let older = run.names().pop().unwrap();
    run.ckpt("promote", &[&older, "--to", "shared", "--from", "nvme"]).expect(0);
    let latest = fs::read_to_string(run.tier("shared").join("LATEST")).unwrap();
    assert_eq!(latest.trim(), name, "an older one does not become the newest");
    let again = run.ckpt("promote", &[&name, "--to", "shared"]).expect(0);
    again.expect_stdout(&["has it already"]);
    fs::write(run.tier("nvme").join(&name).join("d00/r00000-000.safetensors"), "").unwrap();
    fs::remove_dir_all(run.folder.sibling("shared")).unwrap();
    run.ckpt("promote", &[&name, "--to", "shared"]).expect(6).expect_stderr(&["r00000-000"]);
}

#[test]
fn only_what_retention_would_remove_is_collected() {
    let run = Run::new();
    let committed = run.names();
    // Its copy is left out where that of step 8 is due before it begins.
    run.ckpt("promote", &[&committed[1], "--to", "shared"]).expect(0);
    let [dead, current] = ["s000000006-a0001-00000001", "s000000009-a0009-00000002"];
    for name in [dead, current] {
        fs::create_dir_all(run.tier("nvme").join(name).join("d00")).unwrap();
    }
    run.ckpt("gc", &["--dry-run"]).expect(0).expect_stdout(&[dead, "would be removed"]);
    assert!(run.tier("nvme").join(dead).exists());
    let removed = run.ckpt("gc", &["--json"]).expect(0).stdout;
    let removed: Value = serde_json::from_str(&removed).unwrap();
    assert_eq!(removed.as_array().unwrap().len(), 1, "{removed}");
    assert_eq!((&removed[0]["checkpoint"], &removed[0]["removed"]), (&dead.into(), &true.into()));
    assert_eq!(run.names(), [&[current.to_owned()], &committed[..]].concat());

    let config = run.folder.path().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    let former = text.replace("attention = \"flash\"", "attention = \"plain\"");
    assert_ne!(former, text, "a value that earlier versions had");
    let table = "[checkpoint.nvme]\n";
    assert!(former.contains(table), "{former}");
    fs::write(&config, former.replace(table, &format!("{table}keep = 1\n"))).unwrap();
    let of_tier = run.ckpt("gc", &["--dry-run"]).expect(0).expect_stdout(&[&committed[1]]);
    assert!(!of_tier.stdout.contains("shared"), "only nvme keeps one: {}", of_tier.stdout);
    fs::write(&config, former.replace("keep = 2", "keep = 1")).unwrap();
    let lock = fs::File::create(run.folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    run.ckpt("gc", &[]).expect(2).expect_stderr(&["is training"]);
    run.ckpt("gc", &["--dry-run", "--tier", "shared"]).expect(0).expect_stdout(&[&committed[1]]);
    lock.unlock().unwrap();
    run.ckpt("pin", &[&committed[1], "--tier", "shared"]).expect(0);
    run.ckpt("gc", &[]).expect(0).expect_stdout(&["older than the newest 1"]);
    assert_eq!(durable_on(&run.listed()[2]), ["shared"], "pinned there");
    run.ckpt("gc", &[]).expect(0).expect_stdout(&["nothing to remove"]);
}

/// Measures every tier of a run, and folders that need not be of one.
#[test]
fn tiers_are_measured_and_left_as_they_were() {
    let run = Run::new();
    let before = fs::read_dir(run.tier("nvme")).unwrap().count();
    let small = ["--bytes", "1MiB", "--threads", "2"];
    let new = support::text(&run.folder.sibling("new/folder"));
    let rates = run.ckpt("bench", &[&small[..], &["--json", "--path", &new]].concat()).expect(0);
    let rates: Vec<Value> = serde_json::from_str(&rates.stdout).unwrap();
    assert_eq!(rates.len(), 3, "{rates:?}");
    for rates in &rates {
        assert!(rates["write_gib_per_second"].as_f64().unwrap() > 0.0, "{rates}");
        assert_eq!((&rates["bytes"], &rates["threads"]), (&(1 << 20).into(), &2.into()));
    }
    assert_eq!(fs::read_dir(run.tier("nvme")).unwrap().count(), before);
    assert!(!run.folder.sibling("new").exists());
    run.ckpt("bench", &small).expect(0).expect_stdout(&["write", "GiB/s"]);
    support::run(&["ckpt", "bench"]).expect(2).expect_stderr(&["RUN"]);
    let unusable = support::run(&["ckpt", "bench", "--path", "/proc/none"]).expect(6);
    unusable.expect_stderr(&["/proc/none"]);
}

#[test]
fn an_object_store_is_a_tier_like_the_others() {
    let server = S3Server::start();
    let folder = Folder::new();
    let out = folder.text();
    let run = |arguments: &[&str]| {
        let mut command = yardstick(arguments);
        command.envs(server.environment());
        finish(command).expect(0)
    };
    let object = format!("checkpoint.object.path={}", server.url("runs"));
    let train = ["train", "--out", &out, "--steps", "4", "--threads", "1"];
    let every = ["--checkpoint-every", "2steps", "--set", "checkpoint.object.every=4steps"];
    run(&[&train[..], &every, &["--set", &object]].concat());
    let ckpt = |command: &str, flags: &[&str]| run(&[&["ckpt", command, &out], flags].concat());
    let listed =
        || -> Vec<Value> { serde_json::from_str(&ckpt("ls", &["--json"]).stdout).unwrap() };
    let before = listed();
    assert_eq!(
        [0, 1].map(|row| durable_on(&before[row])),
        [vec!["shared", "object"], vec!["shared"]]
    );
    let older = before[1]["name"].as_str().unwrap();
    ckpt("promote", &[older, "--to", "object"]).expect_stdout(&["from shared to object"]);
    ckpt("pin", &[older]).expect_stdout(&["pinned on shared", "pinned on object"]);
    ckpt("verify", &["--checkpoint", older]).expect_stdout(&["on object: ok"]);
    let after = listed();
    assert_eq!(durable_on(&after[1]), ["shared", "object"]);
    assert_eq!(after[1]["tiers"][1]["pinned"], true);
    assert!(after[1]["age_seconds"].as_u64().unwrap() < 3600);
    let before = files(&server.file("runs"));
    ckpt("bench", &["--bytes", "1MiB", "--threads", "2"]).expect_stdout(&["s3://"]);
    assert_eq!(files(&server.file("runs")), before);

    leave_upload(&server);
    assert_eq!(server.open_uploads(), 1);
    ckpt("gc", &["--dry-run"]).expect_stdout(&[UNFINISHED, "uploads in parts", "would be removed"]);
    assert_eq!(server.open_uploads(), 1);
    ckpt("gc", &[]).expect_stdout(&[UNFINISHED, "uploads in parts"]);
    assert_eq!((server.open_uploads(), files(&server.file("runs"))), (0, before));
}

/// A checkpoint of the newest attempt.
const UNFINISHED: &str = "s000000005-a0001-00000000";

/// Leaves what a kill within an upload in parts leaves, beside the checkpoints of the only run.
fn leave_upload(server: &S3Server) {
    const PART_BYTES: usize = 5 << 20;
    let run = fs::read_dir(server.file("runs")).unwrap().next().unwrap().unwrap().file_name();
    let url = server.url(&format!("runs/{}", run.to_str().unwrap()));
    let options = RemoteOptions { settings: server.settings(), ..Default::default() };
    let remote = Remote::open_with(&url, options).unwrap();
    let tier = ObjectTier::new(remote).with_part_bytes(PART_BYTES);
    let mut upload = tier.create(&format!("{UNFINISHED}/d00/r00000-000.safetensors")).unwrap();
    upload.write(&vec![1; PART_BYTES + 1]).unwrap();
    std::mem::forget(upload);
}

//! Weights go out as a Hugging Face folder and come back with the same bits.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use support::{Finished, Folder, Running, finish, record, run, yardstick};

const GPT: &[&str] = &["--workload", "smoke"];
/// Small enough for autograd to be quick.
const LLAMA: &[&str] = &[
    "--workload",
    "llama-smoke",
    "--engine",
    "candle",
    "--set",
    "batch.sequence_tokens=16",
    "--set",
    "batch.global_sequences=4",
];

fn train(out: &Path, family: &[&str], extra: &[&str]) -> Finished {
    run(&[&["train", "--out", &out.to_string_lossy()], family, extra].concat())
}

/// A run of three steps and its export.
fn trained(folder: &Folder, family: &[&str]) -> PathBuf {
    train(&folder.path(), family, &["--steps", "3"]).expect(0);
    let exported = folder.path().with_file_name("exported");
    let out = exported.to_string_lossy().into_owned();
    let told = run(&["export", &folder.text(), "--out", &out]).expect(0).stdout;
    assert!(told.contains(&format!(" bytes, of {} after step 3\n", family[1])), "{told}");
    exported
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn both_families_come_back_bit_for_bit() {
    for (family, tensors) in [(GPT, 2 * 12 + 4), (LLAMA, 2 * 9 + 3)] {
        let folder = Folder::new();
        let exported = trained(&folder, family);
        let bytes = std::fs::read(exported.join("model.safetensors")).unwrap();
        assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), tensors);
        let again = folder.path().with_file_name("again");
        train(&again, family, &["--steps", "1", "--init-from", &text(&exported)]).expect(0);
        let (first, second) = (folder.record(), record(&again));
        let start = &second["run"]["initial_weights"];
        assert_eq!(start["digest"], first["fingerprint"]["weights"], "{family:?}");
        assert_eq!(start["folder"], text(&exported));
        assert_eq!(first["run"]["initial_weights"], Value::Null, "made from the seed");
    }
}

#[test]
fn a_run_that_resumes_does_not_read_the_folder_again() {
    let folder = Folder::new();
    let exported = trained(&folder, GPT);
    let again = folder.path().with_file_name("again");
    let init = text(&exported);
    train(&again, GPT, &["--steps", "2", "--init-from", &init]).expect(0);
    let digest = record(&again)["run"]["initial_weights"]["digest"].clone();
    assert!(digest.is_string());
    let resumed = train(&again, GPT, &["--steps", "4", "--init-from", &init]).expect(0);
    assert!(resumed.stderr.contains("--init-from is not read again"), "{}", resumed.stderr);
    assert_eq!(record(&again)["run"]["initial_weights"]["digest"], digest);
    let plain = folder.path().with_file_name("plain");
    train(&plain, GPT, &["--steps", "4", "--init-from", &init]).expect(0);
    let fingerprint = |folder: &Path| record(folder)["fingerprint"].clone();
    assert_eq!(fingerprint(&again), fingerprint(&plain));
}

/// As data is: a workload file means the same from wherever it is started.
#[test]
fn a_workload_file_names_weights_relative_to_itself() {
    let folder = Folder::new();
    trained(&folder, GPT);
    let shown = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let place = folder.path().with_file_name("workloads");
    std::fs::create_dir(&place).unwrap();
    let file = place.join("mine.toml");
    let shown = shown.replace("[run]\n", "[run]\ninit_from = \"../exported\"\n");
    std::fs::write(&file, shown).unwrap();
    let digest = |out: &str, from: &Path, extra: &[&str]| {
        let out = folder.path().with_file_name(out);
        let (out_text, file) = (text(&out), text(&file));
        let train = ["train", "--steps", "1", "--out", &out_text, "--workload", &file];
        let mut command = yardstick(&[&train, extra].concat());
        command.current_dir(from);
        finish(command).expect(0);
        record(&out)["run"]["initial_weights"]["digest"].clone()
    };
    let expected = folder.record()["fingerprint"]["weights"].clone();
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(digest("by-file", elsewhere.path(), &[]), expected);
    let beside = folder.path().parent().unwrap().to_owned();
    assert_eq!(digest("by-flag", &beside, &["--init-from", "exported"]), expected);
}

/// What others save: no prefix, masks beside the weights, two files with an index.
#[test]
fn shards_of_others_are_read() {
    let folder = Folder::new();
    let exported = trained(&folder, GPT);
    let bytes = std::fs::read(exported.join("model.safetensors")).unwrap();
    let ours = SafeTensors::deserialize(&bytes).unwrap();
    let others = folder.path().with_file_name("others");
    std::fs::create_dir(&others).unwrap();
    std::fs::copy(exported.join("config.json"), others.join("config.json")).unwrap();
    let mask = [1_u8; 4];
    let mut shards = [BTreeMap::new(), BTreeMap::new()];
    let mask = TensorView::new(Dtype::F32, vec![1], &mask).unwrap();
    shards[0].insert("h.0.attn.bias".to_owned(), mask);
    for (index, (name, tensor)) in ours.iter().enumerate() {
        shards[index % 2].insert(name.strip_prefix("transformer.").unwrap().to_owned(), tensor);
    }
    let mut map = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        let file = format!("model-0000{number}.safetensors");
        map.extend(shard.keys().map(|name| (name.clone(), file.clone())));
        safetensors::serialize_to_file(shard, None, &others.join(&file)).unwrap();
    }
    let index = json!({ "metadata": {}, "weight_map": map }).to_string();
    std::fs::write(others.join("model.safetensors.index.json"), index).unwrap();
    let again = folder.path().with_file_name("again");
    train(&again, GPT, &["--steps", "1", "--init-from", &text(&others)]).expect(0);
    let digest = &record(&again)["run"]["initial_weights"]["digest"];
    assert_eq!(*digest, folder.record()["fingerprint"]["weights"]);
}

#[test]
fn a_folder_that_does_not_fit_is_refused_and_says_where() {
    let folder = Folder::new();
    let exported = trained(&folder, GPT);
    let out = folder.path().with_file_name("never");
    let refused = |set: &[&str], says: &str| {
        let init = text(&exported);
        let finished = train(&out, GPT, &[set, &["--init-from", &init]].concat()).expect(2);
        assert!(finished.stderr.contains(says), "no {says:?} in {}", finished.stderr);
        assert!(!out.exists(), "refused before the folder is made");
    };
    refused(&["--set", "model.layers=3"], "n_layer: expected 3");
    refused(&["--set", "model.feed_forward=256"], "n_inner: expected 256");
    refused(&["--set", "model.heads=8"], "n_head: expected 8");
    refused(&["--set", "model.family=llama", "--engine", "candle"], "model_type");
    let config = exported.join("config.json");
    let correct = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, correct.replace("\"n_layer\": 2", "\"n_layer\": 3")).unwrap();
    refused(&["--set", "model.layers=3"], "no tensor transformer.h.2");
    std::fs::write(&config, correct.replace("\"vocab_size\": 256", "\"vocab_size\": 250")).unwrap();
    refused(
        &["--set", "model.vocabulary=250"],
        "transformer.wte.weight: expected shape [250, 128]",
    );
    std::fs::write(&config, correct.replace("\"n_layer\": 2", "\"n_layer\": 1")).unwrap();
    refused(&["--set", "model.layers=1"], "no such tensor");
    let (weights, init) = (exported.join("model.safetensors"), "error: --init-from: ");
    let whole = std::fs::read(&weights).unwrap();
    for cut in [4, whole.len() / 2] {
        std::fs::write(&weights, &whole[..cut]).unwrap();
        refused(&["--set", "model.layers=1"], init);
    }
    std::fs::write(&weights, [255; 64]).unwrap();
    refused(&["--set", "model.layers=1"], "not a safetensors file");
    std::fs::remove_file(&config).unwrap();
    refused(&[], "config.json");
}

#[test]
fn an_export_is_whole_or_not_there() {
    let folder = Folder::new();
    let exported = trained(&folder, GPT);
    let again = run(&["export", &folder.text(), "--out", &text(&exported)]).expect(2);
    assert!(again.stderr.contains("not an empty folder"), "{}", again.stderr);
    let checkpoints = folder.path().join("checkpoints");
    let names: Vec<PathBuf> = std::fs::read_dir(&checkpoints)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("MANIFEST.json").exists())
        .collect();
    let of_one = folder.path().with_file_name("of-one");
    run(&["export", &text(&names[0]), "--out", &text(&of_one)]).expect(0);
    let weights = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(weights(&of_one), weights(&exported));
    let never = folder.path().with_file_name("never");
    let none = ["export", &folder.text(), "--checkpoint", "s1-e1-0", "--out", &text(&never)];
    run(&none).expect(6);
    let shard = names[0].join("d00/r00000-000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 6;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    run(&["export", &folder.text(), "--out", &text(&never)]).expect(6);
    assert!(!never.exists());
    let left = std::fs::read_dir(folder.path().parent().unwrap()).unwrap();
    let partial = left
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("partial"));
    assert_eq!(partial.count(), 0, "nothing half-written stays");
}

#[test]
fn what_a_killed_export_left_is_replaced_and_what_a_living_one_has_is_not() {
    let folder = Folder::new();
    train(&folder.path(), GPT, &["--steps", "1"]).expect(0);
    let out = text(&folder.path().with_file_name("exported"));
    let partial = folder.path().with_file_name(".exported.export-partial");
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("model.safetensors"), "half of it").unwrap();
    let living = std::fs::File::open(&partial).unwrap();
    living.lock().unwrap();
    let refused = run(&["export", &folder.text(), "--out", &out]).expect(2);
    assert!(refused.stderr.contains("just being exported to"), "{}", refused.stderr);
    assert!(partial.join("model.safetensors").exists());
    drop(living);
    run(&["export", &folder.text(), "--out", &out]).expect(0);
    assert!(!partial.exists());
    let again = folder.path().with_file_name("again");
    train(&again, GPT, &["--steps", "1", "--init-from", &out]).expect(0);
}

#[test]
fn an_out_that_cannot_be_replaced_is_told_before_anything_is_written() {
    let folder = Folder::new();
    train(&folder.path(), GPT, &["--steps", "1"]).expect(0);
    let place = tempfile::tempdir().unwrap();
    let (here, link) = (place.path().join("here"), place.path().join("link"));
    std::fs::create_dir(&here).unwrap();
    std::os::unix::fs::symlink(&here, &link).unwrap();
    for out in [".", &text(&link), &format!("{}/", text(&link))] {
        let mut command = yardstick(&["export", &folder.text(), "--out", out]);
        command.current_dir(&here);
        let told = finish(command).expect(2).stderr;
        assert!(told.contains("name a folder that is not there"), "{out}: {told}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "{out}");
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "{out}");
    }
}

/// The run removes each checkpoint as soon as the next is there.
#[test]
fn a_run_that_goes_on_is_exported() {
    let folder = Folder::new();
    let words = ["train", "--out", &folder.text(), "--steps", "100000"];
    let saves = ["--checkpoint-every", "20steps", "--set", "checkpoint.keep=1"];
    let small = ["--set", "batch.sequence_tokens=8", "--set", "schedule.steps=100000"];
    let mut running = Running::start(yardstick(&[&words[..], &saves, &small].concat()));
    let latest = folder.path().join("checkpoints/LATEST");
    let mut exports = 0;
    running.watch_while(|| {
        if latest.exists() {
            exports += 1;
            let out = text(&folder.path().with_file_name(format!("exported-{exports}")));
            run(&["export", &folder.text(), "--out", &out]).expect(0);
        }
        exports < 12
    });
}

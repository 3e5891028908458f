//! `yardstick export` and `--init-from`: weights in model folders of Hugging Face.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use support::{Finished, Folder, Running, finish, record, run, text, yardstick};

const GPT: &[&str] = [
    ["--workload", "smoke"],
    ["--set", "batch.sequence_tokens=16"],
    ["--set", "batch.micro_sequences=2"],
    ["--set", "batch.global_sequences=4"],
]
.as_flattened();
/// Small enough for autograd to be fast.
const LLAMA: &[&str] = [
    ["--workload", "llama-smoke"],
    ["--engine", "candle"],
    ["--set", "batch.sequence_tokens=16"],
    ["--set", "batch.global_sequences=4"],
]
.as_flattened();

const TIED_LLAMA: &[&str] = [
    ["--workload", "llama-smoke"],
    ["--set", "model.tied=true"],
    ["--set", "batch.sequence_tokens=16"],
    ["--set", "batch.global_sequences=4"],
]
.as_flattened();

#[track_caller]
fn train(out: &Path, family: &[&str], extra: &[&str]) -> Finished {
    run(&[&["train", "--out", &text(out)], family, extra].concat())
}

/// The digest of the imported weights of a run.
fn initial_digest(run: &Path) -> Value {
    record(run)["run"]["initial_weights"]["digest"].clone()
}

/// Trains for three steps in `folder`, and exports to a folder next to it.
fn train_and_export(folder: &Folder, family: &[&str]) -> PathBuf {
    train(&folder.path(), family, &["--steps", "3"]).expect(0);
    let exported = folder.sibling("exported");
    let stdout = run(&["export", &folder.text(), "--out", &text(&exported)]).expect(0).stdout;
    assert!(stdout.contains(&format!(" bytes, of {} after step 3\n", family[1])), "{stdout}");
    exported
}

#[test]
fn an_import_of_an_export_has_the_same_bits() {
    for (family, tensors) in [(GPT, 2 * 12 + 4), (LLAMA, 2 * 9 + 3)] {
        let folder = Folder::new();
        let exported = train_and_export(&folder, family);
        let bytes = std::fs::read(exported.join("model.safetensors")).unwrap();
        assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), tensors);
        let second = folder.sibling("second");
        train(&second, family, &["--steps", "1", "--init-from", &text(&exported)]).expect(0);
        let first = folder.record();
        assert_eq!(first["run"]["initial_weights"], Value::Null, "initialised from the seed");
        let imported = &record(&second)["run"]["initial_weights"];
        assert_eq!(imported["digest"], first["fingerprint"]["weights"], "{family:?}");
        assert_eq!(imported["folder"], text(&exported));
    }
}

/// Each rank reads only what it holds.
#[cfg(feature = "mpi")]
#[test]
fn an_import_into_sharded_weights_has_the_same_bits() {
    let folder = Folder::new();
    let exported = text(&train_and_export(&folder, GPT));
    let second = folder.sibling("second");
    let out = text(&second);
    let sharded = ["--steps", "1", "--set", "parallel.sharded=weights", "--init-from", &exported];
    finish(support::mpirun(2, &[&["train", "--out", &out], GPT, &sharded].concat())).expect(0);
    assert_eq!(initial_digest(&second), folder.record()["fingerprint"]["weights"]);
}

#[test]
fn a_run_that_resumes_does_not_read_the_folder_again() {
    let folder = Folder::new();
    let init_from = text(&train_and_export(&folder, GPT));
    let resumed = folder.sibling("resumed");
    train(&resumed, GPT, &["--steps", "2", "--init-from", &init_from]).expect(0);
    let digest = initial_digest(&resumed);
    assert!(digest.is_string());
    let note = "--init-from is not read again";
    let four_steps = ["--steps", "4", "--init-from", &init_from];
    train(&resumed, GPT, &four_steps).expect(0).expect_stderr(&[note]);
    assert_eq!(initial_digest(&resumed), digest);
    let uninterrupted = folder.sibling("uninterrupted");
    train(&uninterrupted, GPT, &four_steps).expect(0);
    let fingerprint = |folder: &Path| record(folder)["fingerprint"].clone();
    assert_eq!(fingerprint(&resumed), fingerprint(&uninterrupted));
}

/// Relative paths work as for data files; on the command line, they start at the working directory.
#[test]
fn weights_in_a_workload_file_are_relative_to_the_file() {
    let folder = Folder::new();
    train_and_export(&folder, GPT);
    let shown = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let workloads = folder.sibling("workloads");
    std::fs::create_dir(&workloads).unwrap();
    let file = workloads.join("mine.toml");
    let shown = shown.replace("[run]\n", "[run]\ninit_from = \"../exported\"\n");
    std::fs::write(&file, shown).unwrap();
    let digest = |out: &str, directory: &Path, extra: &[&str]| {
        let out = folder.sibling(out);
        let train = ["train", "--steps", "1", "--out", &text(&out), "--workload", &text(&file)];
        let mut command = yardstick(&[&train, extra].concat());
        command.current_dir(directory);
        finish(command).expect(0);
        initial_digest(&out)
    };
    let expected = folder.record()["fingerprint"]["weights"].clone();
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(digest("by-file", elsewhere.path(), &[]), expected);
    let parent = folder.path().parent().unwrap().to_owned();
    assert_eq!(digest("by-flag", &parent, &["--init-from", "exported"]), expected);
}

/// Ranks read only the elements that they hold, which begin and end anywhere in the tensors of the
/// files: transposed ones in a GPT, several for one of ours in a Llama.
#[cfg(feature = "mpi")]
#[test]
fn ranks_that_read_parts_start_with_the_weights_of_one_that_reads_all() {
    for workload in ["smoke", "llama-smoke"] {
        let folder = Folder::new();
        let short = [&["--workload", workload], &GPT[2..]].concat();
        let exported = text(&train_and_export(&folder, &short));
        let bf16 = ["--set", "precision.compute=bf16", "--set", support::SEVERAL_BUCKETS];
        let import = |ranks: usize, sharded: &str| {
            let run = Folder::new();
            let sharded = format!("parallel.sharded={sharded}");
            let own = ["--set", &sharded, "--steps", "2", "--init-from", &exported];
            run.train_on(ranks, &[&short[..], &bf16, &own].concat()).expect(0);
            run
        };
        let [alone, whole, parts] =
            [(1, "none"), (2, "none"), (2, "optimizer")].map(|(ranks, kind)| import(ranks, kind));
        let expected = &folder.record()["fingerprint"]["weights"];
        for run in [&alone, &whole, &parts] {
            assert_eq!(initial_digest(&run.path()), *expected, "{workload}");
        }
        assert_eq!(whole.result(), parts.result(), "{workload}");
        let [first, other] = [&alone, &parts].map(|run| run.steps(0)[0].loss());
        assert!((first / other - 1.0).abs() < 1e-3, "{workload}: {first} {other}");
    }
}

/// Gives each rank a folder of its own under one name. The ranks of a sharded optimizer read none
/// of their weights twice, and learn it from a sample.
#[cfg(feature = "mpi")]
#[test]
fn ranks_with_different_folders_are_refused() {
    let folder = Folder::new();
    let exported = train_and_export(&folder, GPT);
    let (header, data) = read_tensors(&exported.join("model.safetensors"));
    let table = &header["transformer.wte.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|at| table[at].as_u64().unwrap() as usize);
    for (sharded, changed) in [("none", end - 1), ("optimizer", start)] {
        let home = tempfile::tempdir().unwrap();
        for rank in 0..2 {
            let copy = home.path().join(format!("rank{rank}/exported"));
            std::fs::create_dir_all(&copy).unwrap();
            std::fs::copy(exported.join("config.json"), copy.join("config.json")).unwrap();
            let mut data = data.clone();
            data[changed] ^= rank;
            write_tensors(&copy.join("model.safetensors"), &header, &data);
        }
        let out = folder.sibling(sharded);
        let sharded = format!("parallel.sharded={sharded}");
        let train = yardstick(&["train", "--steps", "1", "--out", &text(&out)]);
        let mut command = support::launch(2, "sh");
        let enter = "cd \"$0/rank${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" && exec \"$@\"";
        command.args(["-c", enter]).arg(home.path());
        command.arg(train.get_program()).args(train.get_args()).args(GPT);
        command.args(["--set", &sharded, "--init-from", "/proc/self/cwd/exported"]);
        finish(command).expect(2).expect_stderr(&["rank 1 has read different weights than rank 0"]);
    }
}

/// Names without prefix, masks in addition to weights, two files with an index.
#[test]
fn folders_written_by_other_programs_are_read() {
    let folder = Folder::new();
    let exported = train_and_export(&folder, GPT);
    let bytes = std::fs::read(exported.join("model.safetensors")).unwrap();
    let ours = SafeTensors::deserialize(&bytes).unwrap();
    let other = folder.sibling("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(exported.join("config.json"), other.join("config.json")).unwrap();
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
        safetensors::serialize_to_file(shard, None, &other.join(&file)).unwrap();
    }
    let index = json!({ "metadata": {}, "weight_map": map }).to_string();
    std::fs::write(other.join("model.safetensors.index.json"), index).unwrap();
    let second = folder.sibling("second");
    train(&second, GPT, &["--steps", "1", "--init-from", &text(&other)]).expect(0);
    assert_eq!(initial_digest(&second), folder.record()["fingerprint"]["weights"]);
}

#[test]
fn a_folder_of_another_model_is_refused_with_the_difference() {
    let folder = Folder::new();
    let exported = train_and_export(&folder, GPT);
    let out = folder.sibling("never");
    let assert_refused = |set: &[&str], message: &str| {
        let init_from = ["--init-from", &text(&exported)];
        train(&out, GPT, &[set, &init_from].concat()).expect(2).expect_stderr(&[message]);
        assert!(!out.exists(), "refused before the folder is created");
    };
    assert_refused(&["--set", "model.layers=3"], "n_layer: expected 3");
    assert_refused(&["--set", "model.feed_forward=256"], "n_inner: expected 256");
    assert_refused(&["--set", "model.heads=8"], "n_head: expected 8");
    assert_refused(&["--set", "model.family=llama", "--engine", "candle"], "model_type");
    let config = exported.join("config.json");
    let correct = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, correct.replace("\"n_layer\": 2", "\"n_layer\": 3")).unwrap();
    assert_refused(&["--set", "model.layers=3"], "no tensor transformer.h.2");
    std::fs::write(&config, correct.replace("\"vocab_size\": 256", "\"vocab_size\": 250")).unwrap();
    assert_refused(
        &["--set", "model.vocabulary=250"],
        "transformer.wte.weight: expected shape [250, 128]",
    );
    std::fs::write(&config, correct.replace("\"n_layer\": 2", "\"n_layer\": 1")).unwrap();
    assert_refused(&["--set", "model.layers=1"], "no such tensor");
    let weights = exported.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    for cut in [4, whole.len() / 2] {
        std::fs::write(&weights, &whole[..cut]).unwrap();
        assert_refused(&["--set", "model.layers=1"], "error: --init-from: ");
    }
    std::fs::write(&weights, [255; 64]).unwrap();
    assert_refused(&["--set", "model.layers=1"], "not a safetensors file");
    std::fs::remove_file(&config).unwrap();
    assert_refused(&[], "config.json");
}

/// A safetensors file of our own, whose header may be wrong.
fn write_tensors(path: &Path, header: &Value, data: &[u8]) {
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length, &header[..], data].concat()).unwrap();
}

/// The header and the data of a safetensors file.
fn read_tensors(path: &Path) -> (Value, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let data = bytes[8 + length..].to_vec();
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), data)
}

/// The config names the token table as the head; a file may have both, or either of them.
#[test]
fn a_tied_head_is_the_token_table_or_refused() {
    for (family, table, own_head) in [
        (GPT, "transformer.wte.weight", "no workload of this family"),
        (TIED_LLAMA, "model.embed_tokens.weight", "model.tied=false"),
    ] {
        let folder = Folder::new();
        let exported = train_and_export(&folder, family);
        let weights = exported.join("model.safetensors");
        let (header, data) = read_tensors(&weights);
        let import = |name: &str| {
            let init_from = ["--steps", "1", "--init-from", &text(&exported)];
            train(&folder.sibling(name), family, &init_from)
        };
        let [start, end] = [0, 1].map(|at| header[table]["data_offsets"][at].as_u64().unwrap());
        let mut both = header.clone();
        let copy_start = data.len() as u64;
        let offsets = json!([copy_start, copy_start + end - start]);
        let shape = &header[table]["shape"];
        both["lm_head.weight"] = json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets });
        let mut copied = [&data[..], &data[start as usize..end as usize]].concat();
        write_tensors(&weights, &both, &copied);
        import("both").expect(0);
        *copied.last_mut().unwrap() ^= 1;
        write_tensors(&weights, &both, &copied);
        let message = ["lm_head.weight: expected the elements of", table, own_head];
        import("never").expect(2).expect_stderr(&message);
        let table_bytes = &data[start as usize..end as usize];
        let rounded = table_bytes.chunks_exact(4).flat_map(|element| {
            let bits = u32::from_le_bytes(element.try_into().unwrap());
            let to_nearest_even = 0x7fff + (bits >> 16 & 1);
            (((bits + to_nearest_even) >> 16) as u16).to_le_bytes()
        });
        let mut narrow = both.clone();
        narrow["lm_head.weight"]["dtype"] = json!("BF16");
        let narrow_end = copy_start + (end - start) / 2;
        narrow["lm_head.weight"]["data_offsets"] = json!([copy_start, narrow_end]);
        let bytes: Vec<u8> = data.iter().copied().chain(rounded).collect();
        write_tensors(&weights, &narrow, &bytes);
        import("narrow").expect(0);
        let mut only_head = header.clone();
        only_head["lm_head.weight"] = only_head.as_object_mut().unwrap().remove(table).unwrap();
        write_tensors(&weights, &only_head, &data);
        import("only-head").expect(0);
        for name in ["both", "only-head"] {
            let expected = &folder.record()["fingerprint"]["weights"];
            assert_eq!(initial_digest(&folder.sibling(name)), *expected, "{name} of {family:?}");
        }
    }
}

#[test]
fn tensors_that_are_not_all_of_the_data_once_are_refused_by_name() {
    let folder = Folder::new();
    let exported = train_and_export(&folder, GPT);
    let weights = exported.join("model.safetensors");
    let (header, data) = read_tensors(&weights);
    let [one, other] = ["transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.weight"];
    let refuse = |header: &Value, data: &[u8], message: &[&str]| {
        write_tensors(&weights, header, data);
        let init_from = ["--init-from", &text(&exported)];
        train(&folder.sibling("never"), GPT, &init_from).expect(2).expect_stderr(message);
    };
    let mut overlap = header.clone();
    overlap[one]["data_offsets"] = header[other]["data_offsets"].clone();
    refuse(&overlap, &data, &[one, other, "overlap"]);
    refuse(&header, &[&data[..], &[1; 64]].concat(), &["belong to no tensor"]);
    refuse(&header, &data[..data.len() - 4], &["cut off"]);
    let mut without = header.clone();
    without.as_object_mut().unwrap().remove(one);
    refuse(&without, &data, &["belong to no tensor"]);
    let mut small = header.clone();
    small[one]["dtype"] = json!("BF16");
    refuse(&small, &data, &[one, "expected 256 bytes by its type BF16 and shape [128]"]);
    let mut no_type = header;
    no_type["lm_head.weight"] = json!({ "dtype": "", "shape": [], "data_offsets": [0, 0] });
    refuse(&no_type, &data, &["lm_head.weight: not a safetensors entry"]);
}

#[test]
fn an_export_is_complete_or_not_written() {
    let folder = Folder::new();
    let exported = train_and_export(&folder, GPT);
    let repeated = run(&["export", &folder.text(), "--out", &text(&exported)]);
    repeated.expect(2).expect_stderr(&["not an empty folder"]);
    let checkpoints = folder.path().join("checkpoints");
    let names: Vec<PathBuf> = std::fs::read_dir(&checkpoints)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("MANIFEST.json").exists())
        .collect();
    let of_checkpoint = folder.sibling("of-checkpoint");
    run(&["export", &text(&names[0]), "--out", &text(&of_checkpoint)]).expect(0);
    let weights = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(weights(&of_checkpoint), weights(&exported));
    let never = folder.sibling("never");
    let none = ["export", &folder.text(), "--checkpoint", "s1-e1-0", "--out", &text(&never)];
    run(&none).expect(6);
    let shard = names[0].join("d00/r00000-000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 6;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    run(&["export", &folder.text(), "--out", &text(&never)]).expect(6);
    assert!(!never.exists());
    let entries = std::fs::read_dir(folder.path().parent().unwrap()).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!names.any(|name| name.contains("partial")), "the staging folder is removed");
}

#[test]
fn an_out_that_cannot_be_replaced_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    train(&folder.path(), GPT, &["--steps", "1"]).expect(0);
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("directory");
    let link = parent.path().join("link");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    for out in [".", &text(&link), &format!("{}/", text(&link))] {
        let mut command = yardstick(&["export", &folder.text(), "--out", out]);
        command.current_dir(&directory);
        finish(command).expect(2).expect_stderr(&["name a folder that does not exist"]);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 2, "{out}");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "{out}");
    }
}

/// The run removes each checkpoint after the next save.
#[test]
fn a_running_run_can_be_exported() {
    let folder = Folder::new();
    let train = ["train", "--out", &folder.text(), "--steps", "100000"];
    let saves = ["--checkpoint-every", "20steps", "--set", "checkpoint.keep=1"];
    let small = ["--set", "batch.sequence_tokens=8", "--set", "schedule.steps=100000"];
    let mut running = Running::start(yardstick(&[&train[..], &saves, &small].concat()));
    let latest = folder.path().join("checkpoints/LATEST");
    let mut exports = 0;
    running.poll_while(|| {
        if latest.exists() {
            exports += 1;
            let out = text(&folder.sibling(&format!("exported-{exports}")));
            run(&["export", &folder.text(), "--out", &out]).expect(0);
        }
        exports < 12
    });
}

//! `run.tune_matmul` on the emulated device: algorithms that are measured once, kept, and the same
//! on all ranks.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Finished, Folder, finish, text, yardstick};

use super::emulated::SMALL;

const TUNED: [&str; 2] = ["--set", "run.tune_matmul=true"];

/// Number of algorithms that the emulated cuBLASLt offers for a product. The last one is the
/// fastest, and each adds in an order of its own.
#[derive(Clone, Copy)]
struct Offered(u32);

const THREE: Offered = Offered(3);

/// A training run that keeps what it measures in a cache.
fn command(folder: &Folder, cache: &Folder, Offered(count): Offered, flags: &[&str]) -> Command {
    let out = folder.text();
    let train = ["train", "--workload", "smoke", "--device", "cuda", "--out", &out];
    let mut command = yardstick(&[&train[..], SMALL, flags].concat());
    command.env("YARDSTICK_CACHE_DIR", cache.path());
    command.env("EMULATED_CUDA_ALGORITHMS", count.to_string());
    command
}

#[track_caller]
fn train(folder: &Folder, cache: &Folder, offered: Offered, flags: &[&str]) -> Finished {
    finish(command(folder, cache, offered, flags))
}

fn tuned(folder: &Folder) -> Value {
    folder.record()["tuned_products"].clone()
}

/// The only file of tuned products in a cache.
fn cached(cache: &Folder) -> PathBuf {
    let mut files = std::fs::read_dir(cache.path().join("matmul")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

fn damage(file: &Path) {
    let mut content = std::fs::read(file).unwrap();
    *content.last_mut().unwrap() ^= 1;
    std::fs::write(file, content).unwrap();
}

#[test]
fn algorithms_are_measured_once_and_reruns_have_the_same_bits() {
    let cache = Folder::new();
    let [plain, first, second, third, fourth] = [(); 5].map(|()| Folder::new());
    let steps = ["--steps", "3", "--eval-every", "3", "--set", "precision.compute=bf16"];
    let flags = [&TUNED[..], &steps].concat();
    train(&plain, &cache, THREE, &steps).expect(0);
    assert_eq!(tuned(&plain), Value::Null);
    train(&first, &cache, THREE, &flags).expect(0);
    let record = tuned(&first);
    assert_eq!(record["source"], "measured");
    assert_eq!(record["products"], record["changed"], "the last algorithm is the fastest");
    assert!(record["gain_percent"].as_f64().unwrap() > 0.0, "{record}");
    assert_ne!(plain.losses(), first.losses(), "another algorithm, another order of sums");

    train(&second, &cache, THREE, &flags).expect(0);
    assert_eq!(tuned(&second)["source"], "cache");
    damage(&cached(&cache));
    let warned = train(&third, &cache, THREE, &flags).expect(0);
    warned.expect_stderr(&["run.tune_matmul", &text(&cached(&cache)), "the file is damaged"]);
    assert_eq!(tuned(&third)["source"], "measured");
    train(&fourth, &cache, THREE, &flags).expect(0);
    assert_eq!(tuned(&fourth)["source"], "cache", "the damaged file was replaced");
    for rerun in [second, third, fourth] {
        assert_eq!(rerun.result(), first.result());
        assert_eq!(tuned(&rerun)["digest"], record["digest"]);
    }
}

/// Meanwhile the cache is lost, and measurements have another result.
#[test]
fn a_resumed_run_keeps_its_algorithms() {
    let [whole, killed, damaged] = [(); 3].map(|()| Folder::new());
    let flags = [&TUNED[..], &["--steps", "4"]].concat();
    train(&whole, &Folder::new(), THREE, &flags).expect(0);
    let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
    let saves = [&flags[..], &saves].concat();
    let kill = [&saves[..], &["--inject", "kill@step=3"]].concat();
    assert_eq!(train(&killed, &Folder::new(), THREE, &kill).code, -1);
    train(&killed, &Folder::new(), Offered(4), &saves).expect(0);
    assert_eq!(killed.record()["attempts"][1]["resumed_after_step"], 2);
    assert_eq!(tuned(&killed)["source"], "folder");
    assert_eq!(whole.result(), killed.result());

    assert_eq!(train(&damaged, &Folder::new(), THREE, &kill).code, -1);
    damage(&damaged.path().join("tuned_products"));
    let resumed = train(&damaged, &Folder::new(), Offered(4), &saves).expect(0);
    resumed.expect_stderr(&["of the attempt before cannot be used", "may have other bits"]);
    assert_eq!(tuned(&damaged)["source"], "measured");
    assert_ne!(whole.result(), damaged.result(), "by another algorithm");
}

#[cfg(feature = "mpi")]
mod ranks {
    use support::launch;

    use super::*;

    /// Two ranks, the second with other variables of the emulated device.
    fn two_ranks(cache: &Folder, flags: &[&str], second: &str) -> (Folder, Finished) {
        let folder = Folder::new();
        let one = command(&folder, cache, THREE, flags);
        let script = "[ $OMPI_COMM_WORLD_RANK$PMI_RANK = 0 ] || export $VARIABLE_OF_RANK_1; \
                      exec \"$@\"";
        let mut two = launch(2, "sh");
        two.args(["-c", script, "sh"]).arg(one.get_program()).args(one.get_args());
        two.envs(one.get_envs().filter_map(|(name, value)| Some((name, value?))));
        two.env("EMULATED_CUDA_DEVICES", "2").env("VARIABLE_OF_RANK_1", second);
        (folder, finish(two))
    }

    #[test]
    fn all_ranks_use_the_algorithms_of_rank_0() {
        let flags = [&TUNED[..], &["--steps", "3"]].concat();
        let one = Folder::new();
        train(&one, &Folder::new(), THREE, &flags).expect(0);
        let alike = two_ranks(&Folder::new(), &flags, "NOTHING=1");
        // The second rank alone would choose its fourth algorithm.
        let second = two_ranks(&Folder::new(), &flags, "EMULATED_CUDA_ALGORITHMS=4");
        for (folder, finished) in [&alike, &second] {
            assert_eq!(finished.code, 0, "{}", finished.stderr);
            assert_eq!(tuned(folder)["source"], "measured");
        }
        assert_eq!(alike.0.result(), second.0.result());
        // The loss of each sequence has the bits of the algorithm that its rank uses.
        assert_eq!(alike.0.losses()[0], one.losses()[0]);
    }

    /// Rank 0 measures without the weights of the other one, and both train with all of them.
    #[test]
    fn sharded_weights_are_tuned_as_whole_ones() {
        let flags = [&TUNED[..], &["--steps", "3"]].concat();
        let whole = two_ranks(&Folder::new(), &flags, "NOTHING=1");
        let weights = [&flags[..], &["--set", "parallel.sharded=weights"]].concat();
        let kept = [&weights[..], &["--set", "parallel.reshard=false"]].concat();
        for flags in [weights, kept] {
            let (folder, finished) = two_ranks(&Folder::new(), &flags, "NOTHING=1");
            finished.expect(0);
            let [found, expected] = [&folder, &whole.0].map(tuned);
            assert_eq!(found["source"], "measured");
            assert_eq!(found["digest"], expected["digest"], "the same products and algorithms");
            assert_eq!(folder.result(), whole.0.result());
        }
    }

    #[test]
    fn ranks_that_differ_use_the_first_algorithms() {
        let plain = two_ranks(&Folder::new(), &["--steps", "3"], "NOTHING=1");
        let flags = [&TUNED[..], &["--steps", "3"]].concat();
        for (variable, said) in [
            // It has not the third algorithm, which rank 0 chooses.
            ("EMULATED_CUDA_ALGORITHMS=2", "its cuBLASLt refuses the algorithms of rank 0"),
            ("EMULATED_CUDA_NAME=Another", "it has Another (9.0"),
        ] {
            let (folder, finished) = two_ranks(&Folder::new(), &flags, variable);
            let finished = finished.expect(0).expect_stderr(&[said]);
            assert_eq!(finished.stderr.matches("run.tune_matmul").count(), 1);
            assert_eq!(tuned(&folder), Value::Null);
            assert_eq!(folder.result(), plain.0.result(), "{variable}");
        }
    }
}

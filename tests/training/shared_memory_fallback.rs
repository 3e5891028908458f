//! Fallback to other transports where the kernel denies what shared memory needs: with the same
//! bits, and an anomaly in the record.

use support::denied_ranks::{self, Denied};
use support::seccomp::denied_message;
use support::{Folder, Variant, finish};

/// Trains on two ranks.
fn train(denied: Option<Denied>, variant: Variant) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let train = ["train", "--steps", "6", "--threads", "1", "--out", &out];
    let arguments = [&train, &variant.flags()[..]].concat();
    finish(denied_ranks::two_ranks(denied, &arguments)).expect(0);
    folder
}

/// Returns the anomalies of a run that are about shared memory; a busy machine has more.
fn anomalies(run: &Folder) -> Vec<String> {
    let record = run.record();
    let texts = record["anomalies"].as_array().unwrap().iter();
    let texts = texts.map(|anomaly| anomaly["text"].as_str().unwrap().to_owned());
    texts.filter(|text| text.contains("shared memory")).collect()
}

#[test]
fn the_fallback_changes_no_bit_and_is_an_anomaly() {
    let is_llama = |variant: &Variant| variant.workload == "llama-smoke";
    let plain = Variant::all().into_iter().find(is_llama).unwrap();
    for variant in [false, true].map(|is_sharded| Variant { is_sharded, ..plain }) {
        let shared = train(None, variant);
        assert_eq!(anomalies(&shared), Vec::<String>::new(), "{variant:?}");
        for (denied, cause) in [
            (Denied::Creating(0), "rank 0 could not create shared memory: "),
            (Denied::Creating(1), "rank 1 could not create shared memory: "),
            (Denied::Opening(1), "rank 1 could not map the shared memory of its node: "),
        ] {
            let run = train(Some(denied), variant);
            assert_eq!(run.result(), shared.result(), "{variant:?}, {denied:?}");
            let [anomaly] = &anomalies(&run)[..] else { panic!("one anomaly: {}", run.record()) };
            let is_explained = anomaly.contains(cause) && anomaly.contains(&denied_message());
            assert!(is_explained, "{variant:?}, {denied:?}: {anomaly}");
        }
    }
}

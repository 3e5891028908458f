//! The utilisation that a run reports is a share.

use support::{Folder, PROBE};

use crate::alone;

#[test]
fn utilisation_is_measured() {
    let _alone = alone();
    let folder = Folder::new();
    folder.train_on(2, &[&["--steps", "20"], &PROBE[..]].concat()).expect(0);
    let causal = folder.record()["mfu_measured"]["causal"].as_f64().unwrap();
    assert!(causal > 0.0 && causal <= 1.0, "{causal}");
}

//! A build without MPI trains on one rank, and says why it does not under a launcher.

use support::{Folder, finish, mpirun};

#[test]
fn one_rank_trains() {
    let folder = Folder::new();
    folder.train(&["--steps", "2", "--set", "telemetry.matmul_probe=0s"]).expect(0);
    assert_eq!(folder.losses().len(), 2);
}

#[test]
fn ranks_of_a_launcher_are_refused() {
    let out = Folder::new().text();
    let refused = finish(mpirun(2, &["train", "--out", &out]));
    assert_ne!(refused.code, 0);
    refused.expect_stderr(&["needs MPI, but this binary was built without it"]);
}

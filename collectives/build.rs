//! Compiles the constants of mpi.h that bindgen cannot translate, with the MPI that mpi-sys found.

fn main() {
    println!("cargo:rerun-if-changed=src/backends/mpi/library/constants.c");
    println!("cargo:rerun-if-env-changed=MPICC");
    #[cfg(feature = "mpi")]
    constants();
}

#[cfg(feature = "mpi")]
fn constants() {
    let library = match build_probe_mpi::probe() {
        Ok(library) => library,
        Err(causes) => panic!(
            "no MPI was found: install libopenmpi-dev, or set MPICC, or build with \
             --no-default-features. Tried: {causes:?}"
        ),
    };
    let mut build = cc::Build::new();
    build.file("src/backends/mpi/library/constants.c");
    match &library.mpicc {
        Some(mpicc) => build.compiler(mpicc),
        None => build.includes(&library.include_paths),
    };
    build.compile("yardstick_mpi_constants");
}

/* Constants of mpi.h that are casts or optional, and therefore not in bindgen's output. */
#include <mpi.h>

#if defined(OPEN_MPI) && OPEN_MPI && defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5
#include <mpi-ext.h>
#endif

void *const yardstick_mpi_in_place = MPI_IN_PLACE;

/* Error class of a lost peer (user-level failure mitigation); -1 where the library has none. */
#if defined(MPI_ERR_PROC_FAILED)
const int yardstick_mpi_err_proc_failed = MPI_ERR_PROC_FAILED;
#elif defined(MPIX_ERR_PROC_FAILED)
const int yardstick_mpi_err_proc_failed = MPIX_ERR_PROC_FAILED;
#else
const int yardstick_mpi_err_proc_failed = -1;
#endif

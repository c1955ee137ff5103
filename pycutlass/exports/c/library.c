// The interface of a library: what library.h says, made of what kernel.h has.
#include "library.h"

#include <stdalign.h>
#include <string.h>

#include "kernel.h"

static uint64_t const ALIGNMENT = PYCUTLASS_WORKSPACE_ALIGNMENT;

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

enum { MOST_EPILOGUE_BYTES = 4096 };

/// What is planned of one launch: one kernel, or a second one that adds up the partial sums of the first.
typedef struct {
  checked_launch checked;
  loaded_kernel const* kernels[2];
  any_record records[2];
  alignas(16) char epilogues[2][MOST_EPILOGUE_BYTES];
  planned_kernel planned[2];
  int count;
  uint64_t sums_at, bytes;  // of the workspace
} whole_launch;

static int prepare_kernel(whole_launch* whole, int step, int32_t index) {
  int failed = find_kernel((uint32_t)index, &whole->kernels[step]);
  if (failed) return failed;
  loaded_kernel const* const kernel = whole->kernels[step];
  if (kernel->info.epilogue_bytes > MOST_EPILOGUE_BYTES) {
    return refuse(PYCUTLASS_DAMAGED, "the epilogue of kernel %s takes %u bytes of arguments", kernel->stored->name,
                  kernel->info.epilogue_bytes);
  }
  failed = step ? fill_reduction(&whole->checked, kernel, NULL, &whole->records[step])
                : fill_record(&whole->checked, kernel, &whole->records[step]);
  if (!failed) failed = fill_epilogue(&whole->checked, kernel, whole->epilogues[step]);
  whole->records[step].common.epilogue = whole->epilogues[step];
  return failed ? failed : plan_kernel(kernel, &whole->records[step], &whole->planned[step]);
}

/// Checks a launch and plans it without memory, which says how much it needs.
static int prepare(int32_t plan, pycutlass_launch const* launch, int is_sized, whole_launch* whole) {
  int failed = check_launch(plan, launch, is_sized, &whole->checked);
  if (failed) return failed;
  plan_variant const* const variant = whole->checked.variant;
  whole->count = variant->reduction < 0 ? 1 : 2;
  failed = prepare_kernel(whole, 0, variant->kernel);
  if (!failed && whole->count == 2) failed = prepare_kernel(whole, 1, variant->reduction);
  if (failed) return failed;
  whole->sums_at = aligned(whole->planned[0].result.workspace_bytes);
  whole->bytes = whole->planned[0].result.workspace_bytes;
  if (whole->count == 2) {
    int64_t rows, columns;
    product_size(&whole->checked, &rows, &columns);
    whole->bytes =
        whole->sums_at + (uint64_t)rows * (uint64_t)columns * (uint64_t)variant->slices * (uint64_t)variant->sum_bytes;
  }
  return PYCUTLASS_SUCCESS;
}

/// Points the records at the workspace, and plans again with it.
static int use_workspace(whole_launch* whole, pycutlass_launch const* launch) {
  pycutlass_plan_info const* const info = whole->checked.info;
  if (!whole->bytes) return PYCUTLASS_SUCCESS;
  if (!launch->workspace || launch->workspace_bytes < whole->bytes) {
    return refuse(PYCUTLASS_INVALID_ARGUMENT,
                  "%s: the launch needs a workspace of %llu bytes, and has %llu: ask workspace_size for each problem",
                  info->name, (unsigned long long)whole->bytes,
                  (unsigned long long)(launch->workspace ? launch->workspace_bytes : 0));
  }
  if ((uintptr_t)launch->workspace % ALIGNMENT) {
    return refuse(PYCUTLASS_INVALID_ARGUMENT, "%s: the workspace must be aligned to %d bytes, and its address is %p",
                  info->name, PYCUTLASS_WORKSPACE_ALIGNMENT, launch->workspace);
  }
  if (whole->planned[0].result.workspace_bytes) whole->records[0].common.workspace = launch->workspace;
  if (whole->count == 2) {
    void* const sums = (char*)launch->workspace + whole->sums_at;
    whole->records[0].common.operands[PYCUTLASS_D].data = sums;
    whole->records[1].common.operands[PYCUTLASS_A].data = sums;
  }
  for (int step = 0; step < whole->count; ++step) {
    int const failed = plan_kernel(whole->kernels[step], &whole->records[step], &whole->planned[step]);
    if (failed) return failed;
  }
  return PYCUTLASS_SUCCESS;
}

static int32_t find(char const* name) {
  for (uint32_t i = 0; name && i < plan_count; ++i) {
    if (!strcmp(plan_infos[i].name, name)) return (int32_t)i;
  }
  refuse(PYCUTLASS_INVALID_ARGUMENT, "there is no plan %s: the library has %u, the first is %s", name ? name : "(null)",
         plan_count, plan_count ? plan_infos[0].name : "none");
  return -1;
}

static int load(int32_t plan) {
  if (plan < 0 || (uint32_t)plan >= plan_count) {
    return refuse(PYCUTLASS_INVALID_ARGUMENT, "there is no plan %d: the library has %u", plan, plan_count);
  }
  for (uint32_t i = 0; i < plan_tables[plan].variant_count; ++i) {
    plan_variant const* const variant = &plan_tables[plan].variants[i];
    loaded_kernel const* kernel;
    int failed = find_kernel((uint32_t)variant->kernel, &kernel);
    if (!failed && variant->reduction >= 0) failed = find_kernel((uint32_t)variant->reduction, &kernel);
    if (failed) return failed;
  }
  return PYCUTLASS_SUCCESS;
}

static int workspace_size(int32_t plan, pycutlass_launch const* launch, uint64_t* bytes) {
  whole_launch whole;
  int const failed = prepare(plan, launch, 1, &whole);
  if (!failed) *bytes = whole.bytes;
  return failed;
}

static int run(int32_t plan, pycutlass_launch const* launch) {
  whole_launch whole;
  int failed = prepare(plan, launch, 0, &whole);
  if (!failed) failed = use_workspace(&whole, launch);
  if (failed) return failed;
  drv_stream const stream = launch->stream;
  // Semaphores, counters and planes that no slice writes begin as zeros, whatever the memory was for before.
  if (whole.bytes) failed = fill_zeros(launch->workspace, whole.bytes, stream);
  for (int step = 0; step < whole.count && !failed; ++step) {
    failed = launch_kernel(whole.kernels[step], &whole.planned[step], whole.checked.variant->is_pdl && !step, stream);
  }
  return failed;
}

static pycutlass_library library = {PYCUTLASS_LIBRARY_VERSION,
                                    sizeof(pycutlass_library),
                                    PYCUTLASS_ABI_VERSION,
                                    0,
                                    plan_infos,
                                    pycutlass_library_manifest,
                                    find,
                                    load,
                                    workspace_size,
                                    run,
                                    kernel_message,
                                    unload_kernels};

__attribute__((visibility("default"))) pycutlass_library const* pycutlass_get_library(void) {
  library.plan_count = plan_count;
  return &library;
}

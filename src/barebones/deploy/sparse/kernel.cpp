// Convolution with the kept weights only: each output row is a sum of shifted, contiguous pixel rows.
//
// The kernel processes pixels in vectors of 16. A block of up to 8 vectors stays in registers while the kernel adds all
// products of one output channel's kept weights to it. It then adds bias and an optional summand, applies an optional
// ReLU and writes the block once. If the input is padded, strided or tiny, the kernel first gathers its planes into
// rows that can be read contiguously. plan.py computes all tables of offsets (counted in floats) and mirrors
// `KernelArguments`. This is plain C++ with the vector extensions of GCC and Clang. The threads are those of the OpenMP
// pool that torch uses.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int LANES = 16;
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct KernelArguments {
  // The kept weights, row by row: those of row r are starts[r] .. starts[r + 1].
  const float* values;
  const int32_t* offsets;  // where the pixel row begins that each weight is multiplied with
  const int32_t* starts;
  const float* bias;  // one per row
  int64_t rows;
  int64_t relu;
  int64_t dots;  // 1: images have one pixel, and each output is one dot product; offsets are input channels
  // One group of images: its vectors of pixels, its blocks of vectors, and the distance to the next group.
  const int64_t* reads;   // where each vector begins in the input or in the gathered planes
  const int64_t* writes;  // where it begins in the output, or in a row that is copied out afterwards
  const int64_t* blocks;  // the first vector of each block, then the number of vectors
  int64_t block_count;
  int64_t groups, group_in, group_out;
  int64_t row_out;  // distance from one output channel to the next
  const int64_t* parts;  // the first row of each part (parts are of equal work), then the number of rows
  int64_t part_count;
  // Gathering: planes of (images, high, wide) pixels, `plane_size` apart. There are none if the input is read in place.
  int64_t planes;
  const int64_t* origins;  // for each plane: offset of its channel, first input row and column (may be negative)
  int64_t plane_size, images, image_in, high, wide, in_high, in_wide, step_high, step_wide;
  // Copying out, if vectors cover more than the pixels of the output: `length` floats from each source to its target.
  int64_t segments, length, row_size;
  const int64_t* sources;
  const int64_t* targets;
};

// Memory of one thread. It grows and is never released, because planes and rows have the same few sizes in every call.
struct Scratch {
  float* data = nullptr;
  size_t size = 0;
  float* reserve(size_t count) {
    if (count > size) {
      std::free(data);
      data = static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64));
      size = data ? count : 0;
    }
    return data;
  }
  ~Scratch() { std::free(data); }
};
thread_local Scratch planes_of_thread, row_of_thread;

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

// Computes one row of one block of V vectors. U independent sets of sums keep enough additions in flight.
// EVEN: the vectors are adjacent in memory.
template <int V, int U, bool EVEN>
inline void row_of_block(const KernelArguments& args, int64_t row, const float* in, const int64_t* reads,
                         const int64_t* writes, float* out, const float* add) {
  Vector sum[U][V];
  const float bias = args.bias[row];
  for (int v = 0; v < V; ++v) sum[0][v] = Vector{} + bias;
  for (int u = 1; u < U; ++u)
    for (int v = 0; v < V; ++v) sum[u][v] = Vector{};
  int64_t at[V];
  for (int v = 0; v < V; ++v) at[v] = EVEN ? v * LANES : reads[v] - reads[0];
  in += reads[0];
  int64_t k = args.starts[row];
  const int64_t end = args.starts[row + 1];
  for (; k + U <= end; k += U)
    for (int u = 0; u < U; ++u) {
      const float weight = args.values[k + u];
      const float* pixels = in + args.offsets[k + u];
      for (int v = 0; v < V; ++v) sum[u][v] += weight * load(pixels + at[v]);
    }
  for (; k < end; ++k) {
    const float weight = args.values[k];
    const float* pixels = in + args.offsets[k];
    for (int v = 0; v < V; ++v) sum[0][v] += weight * load(pixels + at[v]);
  }
  for (int v = 0; v < V; ++v) {
    Vector total = sum[0][v];
    for (int u = 1; u < U; ++u) total += sum[u][v];
    if (add) total += load(add + writes[v]);
    if (args.relu) total = total < 0.0f ? Vector{} : total;  // keeps NaN
    store(out + writes[v], total);
  }
}

template <int V, int U>
void rows_of_block(const KernelArguments& args, int64_t first, int64_t last, const float* in, const int64_t* reads,
                   const int64_t* writes, float* out, const float* add) {
  bool even = true;
  for (int v = 1; v < V; ++v) even = even && reads[v] == reads[0] + v * LANES;
  for (int64_t row = first; row < last; ++row) {
    float* to = out + row * args.row_out;
    const float* summand = add ? add + row * args.row_out : nullptr;
    if (even)
      row_of_block<V, U, true>(args, row, in, reads, writes, to, summand);
    else
      row_of_block<V, U, false>(args, row, in, reads, writes, to, summand);
  }
}

// Computes rows first .. last of one block; `out` is where the first row of the group begins.
void run_block(const KernelArguments& args, int64_t block, int64_t first, int64_t last, const float* in, float* out,
               const float* add) {
  const int64_t begin = args.blocks[block];
  const int64_t* reads = args.reads + begin;
  const int64_t* writes = args.writes + begin;
  switch (args.blocks[block + 1] - begin) {
    case 1: return rows_of_block<1, 4>(args, first, last, in, reads, writes, out, add);
    case 2: return rows_of_block<2, 4>(args, first, last, in, reads, writes, out, add);
    case 3: return rows_of_block<3, 2>(args, first, last, in, reads, writes, out, add);
    case 4: return rows_of_block<4, 2>(args, first, last, in, reads, writes, out, add);
    case 5: return rows_of_block<5, 2>(args, first, last, in, reads, writes, out, add);
    case 6: return rows_of_block<6, 1>(args, first, last, in, reads, writes, out, add);
    case 7: return rows_of_block<7, 1>(args, first, last, in, reads, writes, out, add);
    default: return rows_of_block<8, 1>(args, first, last, in, reads, writes, out, add);
  }
}

// Copies every second float. It does not read beyond the last float that it copies.
inline void every_second(const float* from, float* to, int64_t count) {
  int64_t j = 0;
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
  for (; j + LANES <= count; j += LANES)
    store(to + j, __builtin_shufflevector(load(from + 2 * j), load(from + 2 * j + LANES - 1), 0, 2, 4, 6, 8, 10, 12, 14,
                                          17, 19, 21, 23, 25, 27, 29, 31));
#endif
#endif
  for (; j < count; ++j) to[j] = from[2 * j];
}

// Gathers one plane: the pixels of all images of the group that one position of the kernel meets, padded with zeros.
void gather(const KernelArguments& args, int64_t plane, const float* in, float* to) {
  const int64_t* origin = args.origins + 3 * plane;
  const int64_t left = origin[2];
  const int64_t step = args.step_wide;
  // Columns begin .. end of the plane are inside the image.
  const int64_t begin = std::min(args.wide, left < 0 ? (-left + step - 1) / step : 0);
  const int64_t end = std::max(begin, std::min(args.wide, (args.in_wide - left + step - 1) / step));
  for (int64_t image = 0; image < args.images; ++image) {
    const float* from = in + image * args.image_in + origin[0];
    for (int64_t i = 0; i < args.high; ++i, to += args.wide) {
      const int64_t y = origin[1] + i * args.step_high;
      if (y < 0 || y >= args.in_high || end <= begin) {
        std::memset(to, 0, args.wide * sizeof(float));
        continue;
      }
      const float* line = from + y * args.in_wide + left;
      for (int64_t j = 0; j < begin; ++j) to[j] = 0;
      if (step == 1)
        std::memcpy(to + begin, line + begin, (end - begin) * sizeof(float));
      else if (step == 2)
        every_second(line + 2 * begin, to + begin, end - begin);
      else
        for (int64_t j = begin; j < end; ++j) to[j] = line[j * step];
      for (int64_t j = end; j < args.wide; ++j) to[j] = 0;
    }
  }
}

// Computes one task: all blocks of one part of the rows or, if nothing is copied out, one block of one part.
// Returns 0, or 1 if there is no memory left.
int run_task(const KernelArguments& args, int64_t task, const float* in, float* out, const float* add) {
  if (!args.segments) {
    const int64_t part = task / args.block_count;
    run_block(args, task % args.block_count, args.parts[part], args.parts[part + 1], in, out, add);
    return 0;
  }
  float* row_buffer = row_of_thread.reserve(args.row_size);
  if (!row_buffer) return 1;
  for (int64_t row = args.parts[task]; row < args.parts[task + 1]; ++row) {
    KernelArguments to_buffer = args;  // the same, but into the row buffer
    to_buffer.row_out = 0;
    to_buffer.relu = args.relu && !add;
    for (int64_t block = 0; block < args.block_count; ++block)
      run_block(to_buffer, block, row, row + 1, in, row_buffer, nullptr);
    float* to = out + row * args.row_out;
    const float* summand = add ? add + row * args.row_out : nullptr;
    for (int64_t s = 0; s < args.segments; ++s) {
      const float* from = row_buffer + args.sources[s];
      float* target = to + args.targets[s];
      if (!summand) {
        for (int64_t j = 0; j < args.length; ++j) target[j] = from[j];
      } else {
        const float* with = summand + args.targets[s];
        for (int64_t j = 0; j < args.length; ++j) {
          const float total = from[j] + with[j];
          target[j] = args.relu && total < 0.0f ? 0.0f : total;
        }
      }
    }
  }
  return 0;
}

// Computes a few images of one pixel each, as in a linear layer: one dot product per row and image.
void run_dots(const KernelArguments& args, int64_t first, int64_t last, const float* x, float* y, const float* add) {
  for (int64_t image = 0; image < args.images; ++image) {
    const float* in = x + image * args.image_in;
    for (int64_t row = first; row < last; ++row) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = args.starts[row]; k < args.starts[row + 1]; ++k) sum += args.values[k] * in[args.offsets[k]];
      sum += args.bias[row];
      const int64_t at = image * args.rows + row;
      if (add) sum += add[at];
      y[at] = args.relu && sum < 0.0f ? 0.0f : sum;
    }
  }
}

}  // namespace

extern "C" int64_t barebones_arguments_size() { return sizeof(KernelArguments); }

// Computes y = relu(conv(x) + bias + add), where `add` may be null. Returns 0, or 1 if there is no memory left.
extern "C" int barebones_run(const KernelArguments* address, const float* x, float* y, const float* add, int threads) {
  const KernelArguments& args = *address;
  const int64_t tasks = args.segments ? args.part_count : args.part_count * args.block_count;
  const size_t need = args.planes * args.plane_size + LANES;
#ifdef _OPENMP
  if (threads > 1 && omp_in_parallel()) threads = 1;
#else
  threads = 1;
#endif
  if (args.dots) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && args.part_count > 1)
    for (int64_t part = 0; part < args.part_count; ++part)
      run_dots(args, args.parts[part], args.parts[part + 1], x, y, add);
    return 0;
  }
  int failed = 0;
  if (args.groups >= threads) {  // each thread gathers and computes whole groups
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : failed)
    for (int64_t g = 0; g < args.groups; ++g) {
      const float* in = x + g * args.group_in;
      if (args.planes) {
        float* planes = planes_of_thread.reserve(need);
        if (!planes) {
          failed = 1;
          continue;
        }
        for (int64_t plane = 0; plane < args.planes; ++plane) gather(args, plane, in, planes + plane * args.plane_size);
        in = planes;
      }
      for (int64_t task = 0; task < tasks; ++task)
        failed |= run_task(args, task, in, y + g * args.group_out, add ? add + g * args.group_out : nullptr);
    }
    return failed;
  }
  float* planes = args.planes ? planes_of_thread.reserve(need) : nullptr;
  if (args.planes && !planes) return 1;
  for (int64_t g = 0; g < args.groups; ++g) {  // fewer groups than threads: the threads share each group
    const float* in = args.planes ? planes : x + g * args.group_in;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t plane = 0; plane < args.planes; ++plane)
        gather(args, plane, x + g * args.group_in, planes + plane * args.plane_size);
#pragma omp for schedule(static) reduction(| : failed)
      for (int64_t task = 0; task < tasks; ++task)
        failed |= run_task(args, task, in, y + g * args.group_out, add ? add + g * args.group_out : nullptr);
    }
  }
  return failed;
}

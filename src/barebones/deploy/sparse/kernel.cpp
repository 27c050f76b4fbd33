// A convolution with kept weights only: each output row is a sum of shifted, contiguous pixel rows.
//
// Pixels are processed in vectors of 16. A block of up to 8 vectors stays in registers while all kept weights of an
// output channel are added to it, and is written once, with bias, an optional summand and ReLU. Where the input is
// padded, strided or tiny, its planes are first gathered into rows that contiguous reads can serve; the layout of all
// that (tables of offsets, in floats) is planned in plan.py, which mirrors `Plan`. Plain C++ with vectors of GCC and
// Clang; threads are those of the OpenMP pool that torch uses.

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

struct Plan {
  // The kept weights, row by row: row r's are starts[r] .. starts[r + 1].
  const float* values;
  const int32_t* offsets;  // of the pixel row each is multiplied with
  const int32_t* starts;
  const float* bias;  // one per row
  int64_t rows;
  int64_t relu;
  int64_t dots;  // each row of weights times each image, which has one pixel: offsets are input channels
  // One group of images: its vectors of pixels, blocks of them, and how far the next group lies.
  const int64_t* reads;   // of each vector, where it begins in the input or in the gathered planes
  const int64_t* writes;  // and in the output, or in a row that is copied out afterwards
  const int64_t* blocks;  // of each block its first vector, and at last the number of vectors
  int64_t block_count;
  int64_t groups, group_in, group_out;
  int64_t row_out;  // from an output channel to the next
  const int64_t* parts;  // rows in parts of equal work: each part's first row, and at last the number of rows
  int64_t part_count;
  // Gathering: planes of (images, high, wide) pixels, `plane_size` apart; none where the input is read in place.
  int64_t planes;
  const int64_t* origins;  // of each plane: its channel's offset, first input row and column (may be negative)
  int64_t plane_size, images, image_in, high, wide, in_high, in_wide, step_high, step_wide;
  // Copying out, where vectors cover more than the output's pixels: `length` floats from each source to its target.
  int64_t segments, length, row_size;
  const int64_t* sources;
  const int64_t* targets;
};

// Memory of a thread that grows and is never given back: planes and rows are the same few sizes again and again.
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

// One row of one block. V vectors; U sets of sums, so that enough additions are under way; EVEN: they lie side by side.
template <int V, int U, bool EVEN>
inline void row_of_block(const Plan& p, int64_t row, const float* in, const int64_t* reads, const int64_t* writes,
                         float* out, const float* add) {
  Vector sum[U][V];
  const float bias = p.bias[row];
  for (int v = 0; v < V; ++v) sum[0][v] = Vector{} + bias;
  for (int u = 1; u < U; ++u)
    for (int v = 0; v < V; ++v) sum[u][v] = Vector{};
  int64_t at[V];
  for (int v = 0; v < V; ++v) at[v] = EVEN ? v * LANES : reads[v] - reads[0];
  in += reads[0];
  int64_t k = p.starts[row];
  const int64_t end = p.starts[row + 1];
  for (; k + U <= end; k += U)
    for (int u = 0; u < U; ++u) {
      const float weight = p.values[k + u];
      const float* pixels = in + p.offsets[k + u];
      for (int v = 0; v < V; ++v) sum[u][v] += weight * load(pixels + at[v]);
    }
  for (; k < end; ++k) {
    const float weight = p.values[k];
    const float* pixels = in + p.offsets[k];
    for (int v = 0; v < V; ++v) sum[0][v] += weight * load(pixels + at[v]);
  }
  for (int v = 0; v < V; ++v) {
    Vector total = sum[0][v];
    for (int u = 1; u < U; ++u) total += sum[u][v];
    if (add) total += load(add + writes[v]);
    if (p.relu) total = total < 0.0f ? Vector{} : total;  // NaN stays
    store(out + writes[v], total);
  }
}

template <int V, int U>
void rows_of_block(const Plan& p, int64_t first, int64_t last, const float* in, const int64_t* reads,
                   const int64_t* writes, float* out, const float* add) {
  bool even = true;
  for (int v = 1; v < V; ++v) even = even && reads[v] == reads[0] + v * LANES;
  for (int64_t row = first; row < last; ++row) {
    float* to = out + row * p.row_out;
    const float* summand = add ? add + row * p.row_out : nullptr;
    if (even)
      row_of_block<V, U, true>(p, row, in, reads, writes, to, summand);
    else
      row_of_block<V, U, false>(p, row, in, reads, writes, to, summand);
  }
}

// Rows first .. last of one block, into `out`, where the group's first row begins.
void run_block(const Plan& p, int64_t block, int64_t first, int64_t last, const float* in, float* out,
               const float* add) {
  const int64_t begin = p.blocks[block];
  const int64_t* reads = p.reads + begin;
  const int64_t* writes = p.writes + begin;
  switch (p.blocks[block + 1] - begin) {
    case 1: return rows_of_block<1, 4>(p, first, last, in, reads, writes, out, add);
    case 2: return rows_of_block<2, 4>(p, first, last, in, reads, writes, out, add);
    case 3: return rows_of_block<3, 2>(p, first, last, in, reads, writes, out, add);
    case 4: return rows_of_block<4, 2>(p, first, last, in, reads, writes, out, add);
    case 5: return rows_of_block<5, 2>(p, first, last, in, reads, writes, out, add);
    case 6: return rows_of_block<6, 1>(p, first, last, in, reads, writes, out, add);
    case 7: return rows_of_block<7, 1>(p, first, last, in, reads, writes, out, add);
    default: return rows_of_block<8, 1>(p, first, last, in, reads, writes, out, add);
  }
}

// Every second float; of the input it reads no further than the last that it takes.
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

// One gathered plane: the pixels that one place of the kernel meets, of all images of the group, zeros around them.
void gather(const Plan& p, int64_t plane, const float* in, float* to) {
  const int64_t* origin = p.origins + 3 * plane;
  const int64_t left = origin[2];
  const int64_t step = p.step_wide;
  const int64_t begin = std::min(p.wide, left < 0 ? (-left + step - 1) / step : 0);  // the first column inside
  const int64_t end = std::max(begin, std::min(p.wide, (p.in_wide - left + step - 1) / step));
  for (int64_t image = 0; image < p.images; ++image) {
    const float* from = in + image * p.image_in + origin[0];
    for (int64_t i = 0; i < p.high; ++i, to += p.wide) {
      const int64_t y = origin[1] + i * p.step_high;
      if (y < 0 || y >= p.in_high || end <= begin) {
        std::memset(to, 0, p.wide * sizeof(float));
        continue;
      }
      const float* line = from + y * p.in_wide + left;
      for (int64_t j = 0; j < begin; ++j) to[j] = 0;
      if (step == 1)
        std::memcpy(to + begin, line + begin, (end - begin) * sizeof(float));
      else if (step == 2)
        every_second(line + 2 * begin, to + begin, end - begin);
      else
        for (int64_t j = begin; j < end; ++j) to[j] = line[j * step];
      for (int64_t j = end; j < p.wide; ++j) to[j] = 0;
    }
  }
}

// One part of the rows, all blocks; or, where nothing is copied out, one block of one part. 1 where memory ran out.
int run_task(const Plan& p, int64_t task, const float* in, float* out, const float* add) {
  if (!p.segments) {
    const int64_t part = task / p.block_count;
    run_block(p, task % p.block_count, p.parts[part], p.parts[part + 1], in, out, add);
    return 0;
  }
  float* row_buffer = row_of_thread.reserve(p.row_size);
  if (!row_buffer) return 1;
  for (int64_t row = p.parts[task]; row < p.parts[task + 1]; ++row) {
    Plan one = p;
    one.row_out = 0;
    one.relu = p.relu && !add;
    for (int64_t block = 0; block < p.block_count; ++block) run_block(one, block, row, row + 1, in, row_buffer, nullptr);
    float* to = out + row * p.row_out;
    const float* summand = add ? add + row * p.row_out : nullptr;
    for (int64_t s = 0; s < p.segments; ++s) {
      const float* from = row_buffer + p.sources[s];
      float* target = to + p.targets[s];
      if (!summand) {
        for (int64_t j = 0; j < p.length; ++j) target[j] = from[j];
      } else {
        const float* with = summand + p.targets[s];
        for (int64_t j = 0; j < p.length; ++j) {
          const float total = from[j] + with[j];
          target[j] = p.relu && total < 0.0f ? 0.0f : total;
        }
      }
    }
  }
  return 0;
}

// A few images of one pixel each, as a linear layer has them: the kept inputs of a row are picked one by one.
void run_dots(const Plan& p, int64_t first, int64_t last, const float* x, float* y, const float* add) {
  for (int64_t image = 0; image < p.images; ++image) {
    const float* in = x + image * p.image_in;
    for (int64_t row = first; row < last; ++row) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = p.starts[row]; k < p.starts[row + 1]; ++k) sum += p.values[k] * in[p.offsets[k]];
      sum += p.bias[row];
      const int64_t at = image * p.rows + row;
      if (add) sum += add[at];
      y[at] = p.relu && sum < 0.0f ? 0.0f : sum;
    }
  }
}

}  // namespace

extern "C" int64_t barebones_plan_size() { return sizeof(Plan); }

// y = relu(conv(x) + bias + add), where `add` may be null. Returns 0, or 1 where memory ran out.
extern "C" int barebones_run(const Plan* plan, const float* x, float* y, const float* add, int threads) {
  const Plan& p = *plan;
  const int64_t tasks = p.segments ? p.part_count : p.part_count * p.block_count;
  const size_t need = p.planes * p.plane_size + LANES;
#ifdef _OPENMP
  if (threads > 1 && omp_in_parallel()) threads = 1;
#else
  threads = 1;
#endif
  if (p.dots) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && p.part_count > 1)
    for (int64_t part = 0; part < p.part_count; ++part) run_dots(p, p.parts[part], p.parts[part + 1], x, y, add);
    return 0;
  }
  int failed = 0;
  if (p.groups >= threads) {  // each thread gathers and computes groups of its own
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(| : failed)
    for (int64_t g = 0; g < p.groups; ++g) {
      const float* in = x + g * p.group_in;
      if (p.planes) {
        float* planes = planes_of_thread.reserve(need);
        if (!planes) {
          failed = 1;
          continue;
        }
        for (int64_t plane = 0; plane < p.planes; ++plane) gather(p, plane, in, planes + plane * p.plane_size);
        in = planes;
      }
      for (int64_t task = 0; task < tasks; ++task)
        failed |= run_task(p, task, in, y + g * p.group_out, add ? add + g * p.group_out : nullptr);
    }
    return failed;
  }
  float* planes = p.planes ? planes_of_thread.reserve(need) : nullptr;
  if (p.planes && !planes) return 1;
  for (int64_t g = 0; g < p.groups; ++g) {  // few groups: the threads share each
    const float* in = p.planes ? planes : x + g * p.group_in;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t plane = 0; plane < p.planes; ++plane)
        gather(p, plane, x + g * p.group_in, planes + plane * p.plane_size);
#pragma omp for schedule(static) reduction(| : failed)
      for (int64_t task = 0; task < tasks; ++task)
        failed |= run_task(p, task, in, y + g * p.group_out, add ? add + g * p.group_out : nullptr);
    }
  }
  return failed;
}

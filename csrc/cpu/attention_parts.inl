// What the two directions of attention share: who sees whom, dropout, and tokens in the form that `product` reads.
//
// Queries lie in lanes, 64 at a time: scores are S^T = K Q^T, so that softmax runs down lanes, with no sum or maximum
// across them, and its result is the packed operand of the next product as it stands.
#pragma once
#include "pack.inl"

namespace {

constexpr int64_t QUERIES = 64;  // of a block

// Hands out parts of a thread's scratch, or counts their bytes when `base` is 0.
struct Room {
  uintptr_t base;
  size_t used = 0;

  template <class X>
  X* take(int64_t count) {
    X* part = (X*)(base + used);
    used += up_to(count * sizeof(X), 64);
    return part;
  }
};

// ------------------------------------------------------------------------------------------- who sees whom

struct Range {
  int64_t first, last;
};

// One sequence. Columns ascend, so whatever a query sees, and whoever sees a key, lies side by side.
struct Sequence {
  int64_t start, length;
  const int64_t* columns;  // of this sequence; null: the index
  int64_t half;            // -1 for global

  int64_t column(int64_t i) const { return columns ? columns[i] : i; }

  // How many tokens lie before `column`.
  int64_t before(int64_t column) const {
    if (!columns) return column < 0 ? 0 : column > length ? length : column;
    int64_t low = 0, high = length;
    while (low < high) {
      int64_t middle = (low + high) / 2;
      if (columns[middle] < column) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  // Keys that at least one of the queries [first, last) sees, from an even one, so that pairs of keys are the same
  // pairs whichever queries are asked for.
  Range seen(int64_t first, int64_t last) const {
    if (half < 0) return {0, length};
    return {before(column(first) - half) & ~(int64_t)1, before(column(last - 1) + half + 1)};
  }
  // Keys that all of them see.
  Range seen_by_all(int64_t first, int64_t last) const {
    if (half < 0) return {0, length};
    return {before(column(last - 1) - half), before(column(first) + half + 1)};
  }
};

inline Sequence sequence_of(const ef::Attention* a, int32_t b) {
  int64_t start = a->cu_seqlens[b], longest_half = (int64_t)1 << 40;
  return {start, a->cu_seqlens[b + 1] - start, a->columns ? a->columns + start : nullptr,
          a->half < longest_half ? a->half : longest_half};
}

// For each key of a block the lanes that see it, [from, from + count).
struct Lanes {
  int32_t *from, *count;

  explicit Lanes(Room& room, int64_t keys) : from(room.take<int32_t>(keys)), count(room.take<int32_t>(keys)) {}

  void find(const Sequence& s, Range keys, Range queries) const {
    int64_t low = queries.first, high = queries.first;
    for (int64_t k = keys.first; k < keys.last; k++) {
      while (low < queries.last && s.column(low) + s.half < s.column(k)) low++;
      while (high < queries.last && s.column(high) - s.half <= s.column(k)) high++;
      from[k - keys.first] = (int32_t)(low - queries.first);
      count[k - keys.first] = (int32_t)(high - low);
    }
  }
  // `s` where lane `lane` and those after it see the key, else -infinity.
  F seen(F s, int64_t key, int64_t lane) const {
    return (U)(indices(lane) - from[key]) < (U)(I{} + count[key]) ? s : splat(-INFINITY);
  }
  static I indices(int64_t first) {
    I x = {};
    for (int i = 0; i < L; i++) x[i] = i;
    return x + (int32_t)first;
  }
};

// ------------------------------------------------------------------------------------------- dropout

struct Dropout {
  uint64_t seed;
  uint32_t threshold;
  float scale;  // of what is kept

  // Is element (query, key) kept? For the queries from `query` on.
  F kept(F p, int64_t key, int64_t query) const {
    return hash(seed, (uint32_t)key, (U)Lanes::indices(query)) >= threshold ? p : F{};
  }
};

// Each sequence and head draws its own numbers.
inline Dropout dropout_of(const ef::Attention* a, int32_t b, int32_t h) {
  uint64_t x = a->seed + ((uint64_t)b * a->H + h + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return {x ^ (x >> 31), dropout_limit(a->dropout), kept_scale(a->dropout)};
}

// ------------------------------------------------------------------------------------------- tokens as operands

// Rows of D numbers in memory, of one sequence and head.
template <class Number>
struct Rows {
  Number* data;
  int64_t stride;

  Number* at(int64_t i) const { return data + i * stride; }
};

template <class Number>
inline Rows<Number> rows_of(const void* data, int64_t token, int64_t head, int64_t token_stride, int64_t head_stride) {
  return {(Number*)data + token * token_stride + head * head_stride, token_stride};
}

// Units of a packed row of D numbers, with the padding that products and `transpose` read.
template <class T>
inline int64_t row_units_of(int64_t D) {
  return up_to((D + T::numbers - 1) / T::numbers, L);
}

template <class Number>
inline F load_some(const Number* from, int64_t count) {
  if (count >= L) return wide_load(from);
  float part[L] = {};
  for (int64_t i = 0; i < count; i++) part[i] = widen(from[i]);
  return load(part);
}

// Tokens [first, last), each a row of units along D: the left operand of a product over D.
template <class T, class Number>
inline void pack_rows(typename T::unit* to, Rows<Number> from, Range tokens, int64_t D) {
  typedef typename NumberOf<T>::type To;
  int64_t units = row_units_of<T>(D);
  for (int64_t i = tokens.first; i < tokens.last; i++, to += units)
    convert_row((To*)to, (const Number*)from.at(i), D, units * T::numbers);
}

// Units along the tokens, a row for each, columns along D: the right operand of a product over tokens [first, last).
// `rows` rows of up_to(D, L) units are written; those beyond `last` are zero.
template <class T, class Number>
inline void pack_along_tokens(typename T::unit* to, Rows<Number> from, Range tokens, int64_t D, int64_t rows) {
  int64_t width = up_to(D, L);
  for (int64_t u = 0; u < rows; u++, to += width) {
    int64_t token = tokens.first + u * T::numbers;
    for (int64_t d = 0; d < width; d += L) {
      F x = token < tokens.last ? load_some(from.at(token) + d, D - d) : F{};
      if constexpr (T::numbers == 2)
        x = (F)T::join(x, token + 1 < tokens.last ? load_some(from.at(token + 1) + d, D - d) : F{});
      store((uint32_t*)(to + d), (U)x);
    }
  }
}

// The first halves of x and y, one number of each in turn, and the second halves.
template <class Vector>
inline void interleave(Vector& x, Vector& y) {
  constexpr int L = sizeof(Vector) / 4;
  Vector a = x, b = y;
  if constexpr (L == 16) {
    x = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    y = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  } else if constexpr (L == 8) {
    x = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    y = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  } else {
    x = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    y = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  }
}

// 32-bit numbers, `rows` x `columns` -> `columns` x `rows`; both are multiples of L. log2(L) rounds of interleaving row
// i with row i + L / 2 turn a square.
template <class Unit>
inline void transpose(Unit* to, int64_t to_row, const Unit* from, int64_t from_row, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r += L)
    for (int64_t c = 0; c < columns; c += L) {
      U x[L], y[L];
      for (int i = 0; i < L; i++) x[i] = load((const uint32_t*)(from + (r + i) * from_row + c));
      for (int width = 1; width < L; width *= 2) {
        for (int i = 0; i < L / 2; i++) {
          y[2 * i] = x[i], y[2 * i + 1] = x[i + L / 2];
          interleave(y[2 * i], y[2 * i + 1]);
        }
        for (int i = 0; i < L; i++) x[i] = y[i];
      }
      for (int i = 0; i < L; i++) store((uint32_t*)(to + (c + i) * to_row + r), x[i]);
    }
}

// Queries [first, last) with units along D and a query in each of `lanes` lanes, zero beyond `last`: the right operand
// of a product over D, row_units_of(D) rows of QUERIES. `rows` has room for QUERIES packed rows.
template <class T, class Number>
inline void pack_queries(typename T::unit* to, typename T::unit* rows, Rows<Number> from, Range queries, int64_t D,
                         int64_t lanes) {
  int64_t units = row_units_of<T>(D), count = queries.last - queries.first;
  pack_rows<T>(rows, from, queries, D);
  memset(rows + count * units, 0, (lanes - count) * units * sizeof *rows);
  transpose(to, QUERIES, rows, units, lanes, units);
}

// Tokens in rows of units along the tokens, a row for each d: the left operand of a product over tokens.
template <class T>
struct Turned {
  typename T::unit *units, *part;
  int64_t row;  // units from row to row: products may read up to UNIT_STEP beyond the last token

  Turned(Room& room, int64_t D, int64_t tokens) {
    row = up_to((tokens + T::numbers - 1) / T::numbers, L) + L;
    units = room.take<typename T::unit>(up_to(D, L) * row);
    part = room.take<typename T::unit>(up_to(D, L) * L);
  }
  template <class Number>
  void pack(Rows<Number> from, Range tokens, int64_t D) {
    for (int64_t u = 0; u < row; u += L) {
      Range here = {tokens.first + u * T::numbers, tokens.last};
      pack_along_tokens<T>(part, from, here, D, L);
      transpose(units + u, row, part, up_to(D, L), L, up_to(D, L));
      if (here.first >= tokens.last) return;
    }
  }
  const typename T::unit* at(int64_t token) const { return units + token / T::numbers; }
};

// fp32 numbers with D in rows and queries in lanes -> rows of `to`, scaled by `scale` lane by lane. `rows` has room for
// QUERIES rows of up_to(D, L).
template <class Number>
inline void put_back(Rows<Number> to, Range queries, float* from, const float* scale, float* rows, int64_t D) {
  int64_t count = queries.last - queries.first, lanes = up_to(count, L), width = up_to(D, L);
  for (int64_t d = 0; d < D; d++)
    for (int64_t j = 0; j < lanes; j += L) {
      float* x = from + d * QUERIES + j;
      store(x, load(x) * load(scale + j));
    }
  transpose(rows, width, from, QUERIES, width, lanes);
  for (int64_t i = 0; i < count; i++) convert_row(to.at(queries.first + i), (const float*)rows + i * width, D, D);
}

}  // namespace

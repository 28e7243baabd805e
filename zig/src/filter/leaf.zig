//! One test of one column, in three forms that must agree: a vertex, a word of 64 neighboring rows, and up to 64
//! vertices from anywhere. The forms are function pointers made at compile time for each type and test, so that a
//! check costs one indirect call and no look at the type.
//!
//! Nulls: the tree above holds `not` only at its leaves (predicate.zig), so a leaf needs no third value. It passes when
//! the row is valid and the test says what `negated` wants; a null row passes neither the test nor its negation.
const std = @import("std");
const column_room = @import("column.zig");
const program = @import("program.zig");
const Diagnostic = @import("column.zig").Diagnostic;
const PartError = column_room.PartError;
const Column = column_room.Column;
const Columns = column_room.Columns;
const ColumnPostings = column_room.ColumnPostings;
const Span = column_room.Span;
const assert = std.debug.assert;
const ValueType = column_room.ValueType;

// ---- rows that postings name ----
//
// The rows that match one test, from the postings of its column.

/// More values than these are not sought one by one in an order: each takes a walk through the column.
const sought_in_order_max = 256;

pub const Found = struct {
    postings: *const ColumnPostings,
    kind: Kind,
    /// Not empty where the kind says so; of `all` the smallest first.
    spans: []const Span,
    /// Rows that match, null and negation left aside: exactly, or of `any` and `all` at the very most.
    matched_max: u64,

    pub const Kind = enum {
        /// The test is for null.
        nulls,
        /// Rows of the spans, none of them twice.
        union_disjoint,
        /// Rows of the spans, which overlap.
        any,
        /// Rows that stand in every span.
        all,
    };

    pub fn of(arena: std.mem.Allocator, columns: *Columns, parsed: program.Leaf, diagnostic: *Diagnostic) column_room.PartError!?Found {
        const part = try columns.postings_of(parsed.column, diagnostic) orelse return null;
        if (parsed.opcode == .is_null) return .{ .postings = part, .kind = .nulls, .spans = &.{}, .matched_max = part.nulls };
        if (part.form == .none) return null;
        if (part.form == .order and parsed.opcode == .in_set and parsed.operands.len() > sought_in_order_max) return null;
        var self = Found{ .postings = part, .kind = .union_disjoint, .spans = &.{}, .matched_max = 0 };
        if (parsed.opcode == .range) {
            const span = try arena.alloc(Span, 1);
            span[0] = .{
                .from = part.lower(parsed.column, key_of(parsed, 0)),
                .to = part.upper(parsed.column, key_of(parsed, 1)),
            };
            span[0].to = @max(span[0].to, span[0].from);
            self.matched_max = part.count(span[0]);
            if (self.matched_max > 0) self.spans = span;
            return self;
        }
        var spans: std.ArrayList(Span) = .empty;
        for (0..parsed.operands.len()) |i| {
            const key = key_of(parsed, i);
            const span = Span{ .from = part.lower(parsed.column, key), .to = part.upper(parsed.column, key) };
            if (span.from < span.to) {
                try spans.append(arena, span);
            } else if (parsed.opcode == .contains_all) return self; // no list holds it
        }
        self.spans = spans.items;
        const is_list = parsed.column.type.is_list();
        if (is_list and spans.items.len > 1) self.kind = if (parsed.opcode == .contains_all) .all else .any;
        if (self.kind == .all) {
            std.mem.sort(Span, spans.items, part, fewer);
            self.matched_max = part.count(spans.items[0]);
        } else for (spans.items) |span| {
            self.matched_max += part.count(span);
        }
        self.matched_max = @min(self.matched_max, part.n);
        // Of no value at all every list holds all: the test by row knows it.
        if (is_list and parsed.opcode == .contains_all and parsed.operands.len() == 0) return null;
        return self;
    }

    pub fn is_exact(self: *const Found) bool {
        return self.kind == .nulls or self.kind == .union_disjoint;
    }

    /// Entries in the spans from which rows can be drawn: of `all` the rows of the smallest.
    pub fn drawable(self: *const Found) []const Span {
        return if (self.kind == .all) self.spans[0..1] else self.spans;
    }

    pub fn entries(self: *const Found) u64 {
        var total: u64 = 0;
        for (self.drawable()) |span| total += self.postings.count(span);
        return total;
    }

    /// Single values behind the drawable spans.
    pub fn values(self: *const Found) u64 {
        if (self.postings.form == .order) return self.drawable().len;
        var total: u64 = 0;
        for (self.drawable()) |span| total += span.to - span.from;
        return total;
    }

    /// The i-th of `entries`, or one near it.
    pub fn draw(self: *const Found, i: u64) u32 {
        var left = i;
        for (self.drawable()) |span| {
            const here = self.postings.count(span);
            if (left < here) return self.postings.select(span, @intCast(left));
            left -= here;
        }
        unreachable;
    }

    pub fn each(self: *const Found, to: anytype) void {
        for (self.drawable()) |span| self.postings.each(span, to);
    }
};

fn fewer(part: *const ColumnPostings, a: Span, b: Span) bool {
    return part.count(a) < part.count(b);
}

fn key_of(parsed: program.Leaf, i: usize) u64 {
    switch (parsed.column.type) {
        .bool => return parsed.operands.word(i),
        inline else => |t| {
            const T = column_room.ValueType(t);
            return column_room.key_of(T, parsed.operands.get(T, i).?).?;
        },
    }
}

// ---- leaves ----

pub const Leaf = struct {
    column: Column,
    negated: bool,
    /// The relative cost of a check, for ordering.
    cost: f32,
    /// The operand in the column's postings; null where it has none.
    found: ?Found = null,
    operands: Operands,
    passes: *const fn (leaf: *const Leaf, row: usize) bool,
    /// Rows first..first + count; only those in `alive` matter, and a subset of `alive` comes back.
    word: *const fn (leaf: *const Leaf, first: usize, count: usize, alive: u64) u64,
    gather: *const fn (leaf: *const Leaf, rows: []const u32, alive: u64) u64,

    pub fn init(arena: std.mem.Allocator, columns: *Columns, parsed: program.Leaf, negated: bool, diagnostic: *Diagnostic) PartError!Leaf {
        const column = parsed.column;
        var leaf = if (parsed.opcode == .is_null) with(NullTest, column, negated, 1, .{ .none = {} }) else switch (column.type) {
            .bool => bool_leaf(parsed, negated),
            inline .list_code32, .list_i64 => |t| try list_leaf(ValueType(t), arena, columns, parsed, negated, diagnostic),
            inline else => |t| try scalar_leaf(ValueType(t), arena, parsed, negated),
        };
        leaf.found = try Found.of(arena, columns, parsed, diagnostic);
        return leaf;
    }

    fn with(comptime Test: type, column: *const Column, negated: bool, cost: f32, operands: Operands) Leaf {
        const form = Forms(Test);
        return .{
            .column = column.*,
            .negated = negated,
            .cost = cost,
            .operands = operands,
            .passes = form.passes,
            .word = form.word,
            .gather = form.gather,
        };
    }
};

const Operands = union {
    none: void,
    /// Which of false and true pass.
    bools: [2]bool,
    /// Low and high as the column's type, bit-cast to the low bytes.
    range: [2]u64,
    sorted: Sorted,
    dense: Dense,
    signed: Signed,
};

const Sorted = struct { bytes: []const u8 };

/// Values sought in lists, and the bits that say where not to look.
const Signed = struct { bytes: []const u8, bits: u64, signatures: [*]const u64 };

/// Members of [low, low + span) as bits.
const Dense = struct { low: i64, span: u64, words: []const u64 };

fn bool_leaf(parsed: program.Leaf, negated: bool) Leaf {
    var bools = [2]bool{ false, false };
    if (parsed.opcode == .range) {
        const low = parsed.operands.word(0);
        const high = parsed.operands.word(1);
        for (&bools, 0..) |*accepted, value| accepted.* = low <= value and value <= high;
    } else for (0..parsed.operands.len()) |i| {
        bools[@intCast(parsed.operands.word(i))] = true;
    }
    return Leaf.with(BoolTest, parsed.column, negated, 1, .{ .bools = bools });
}

fn scalar_leaf(comptime T: type, arena: std.mem.Allocator, parsed: program.Leaf, negated: bool) error{OutOfMemory}!Leaf {
    const count = parsed.operands.len();
    if (parsed.opcode == .range) {
        const range = [2]u64{ to_word(T, parsed.operands.get(T, 0).?), to_word(T, parsed.operands.get(T, 1).?) };
        return Leaf.with(RangeTest(T), parsed.column, negated, 1, .{ .range = range });
    }
    const values = try copy_values(T, arena, parsed.operands);
    if (count == 1) {
        const one = to_word(T, values[0]);
        return Leaf.with(RangeTest(T), parsed.column, negated, 1, .{ .range = .{ one, one } });
    }
    if (@typeInfo(T) == .int) if (try dense_of(T, arena, values)) |dense|
        return Leaf.with(DenseTest(T), parsed.column, negated, 1.5, .{ .dense = dense });
    const cost = 1 + @as(f32, @floatFromInt(std.math.log2_int_ceil(usize, count + 1)));
    return Leaf.with(SortedTest(T), parsed.column, negated, cost, .{ .sorted = .{ .bytes = std.mem.sliceAsBytes(values) } });
}

/// Any of more values than these would meet too many bits of a signature.
const signed_any_max = 8;

fn list_leaf(comptime T: type, arena: std.mem.Allocator, columns: *Columns, parsed: program.Leaf, negated: bool, diagnostic: *Diagnostic) PartError!Leaf {
    const values = try copy_values(T, arena, parsed.operands);
    const bytes = std.mem.sliceAsBytes(values);
    const is_all = parsed.opcode == .contains_all;
    if (is_all or values.len <= signed_any_max) {
        var bits: u64 = 0;
        for (values) |value| bits |= column_room.signature_bit(value);
        const signed = Operands{ .signed = .{ .bytes = bytes, .bits = bits, .signatures = try columns.signatures_of(parsed.column, diagnostic) } };
        if (is_all) return Leaf.with(ContainsAllTest(T), parsed.column, negated, 2, signed);
        return Leaf.with(ContainsFewTest(T), parsed.column, negated, 3, signed);
    }
    if (try dense_of(T, arena, values)) |dense|
        return Leaf.with(ContainsDenseTest(T), parsed.column, negated, 6, .{ .dense = dense });
    const cost = 6 + 4 * @log2(@as(f32, @floatFromInt(values.len)));
    return Leaf.with(ContainsAnyTest(T), parsed.column, negated, cost, .{ .sorted = .{ .bytes = bytes } });
}

fn copy_values(comptime T: type, arena: std.mem.Allocator, operands: program.Operands) error{OutOfMemory}![]T {
    const values = try arena.alloc(T, operands.len());
    for (values, 0..) |*value, i| value.* = operands.get(T, i).?;
    return values;
}

/// A bitmap where it is small by itself, or smaller than about twice the sorted list.
fn dense_of(comptime T: type, arena: std.mem.Allocator, values: []const T) error{OutOfMemory}!?Dense {
    if (values.len == 0) return null;
    const high = values[values.len - 1];
    if (T == u64 and high > std.math.maxInt(i64)) return null;
    const low: i64 = @intCast(values[0]);
    const last: u64 = @bitCast(@as(i64, @intCast(high)) -% low);
    if (last >= @max(1 << 16, 128 * values.len)) return null;
    const words = try arena.alloc(u64, last / 64 + 1);
    @memset(words, 0);
    for (values) |value| {
        const at: u64 = @bitCast(@as(i64, @intCast(value)) -% low);
        words[at / 64] |= @as(u64, 1) << @intCast(at % 64);
    }
    return .{ .low = low, .span = last + 1, .words = words };
}

inline fn dense_has(comptime T: type, dense: *const Dense, value: T) bool {
    // Subtraction modulo 2^64 sends what lies below `low` beyond the span, and so it does what a u64 above 2^63 holds.
    const wide: u64 = if (@typeInfo(T).int.signedness == .signed) @bitCast(@as(i64, value)) else @as(u64, value);
    const at = wide -% @as(u64, @bitCast(dense.low));
    return at < dense.span and (dense.words[at / 64] >> @intCast(at % 64)) & 1 == 1;
}

fn to_word(comptime T: type, value: T) u64 {
    const Bits = std.meta.Int(.unsigned, @bitSizeOf(T));
    return @as(Bits, @bitCast(value));
}

inline fn from_word(comptime T: type, word: u64) T {
    const Bits = std.meta.Int(.unsigned, @bitSizeOf(T));
    return @bitCast(@as(Bits, @truncate(word)));
}

inline fn sorted_values(comptime T: type, leaf: *const Leaf) []const T {
    return @alignCast(std.mem.bytesAsSlice(T, leaf.operands.sorted.bytes));
}

/// Branch-free: half the remaining values go at every step.
inline fn sorted_has(comptime T: type, values: []const T, value: T) bool {
    var from: usize = 0;
    var len = values.len;
    while (len > 1) {
        const half = len / 2;
        from += if (values[from + half - 1] < value) half else 0;
        len -= half;
    }
    return values.len > 0 and values[from] == value;
}

inline fn list_of(comptime T: type, column: *const Column, row: usize) []align(1) const T {
    const offsets = column.offsets.?;
    const first: usize = @intCast(offsets[row]);
    const end: usize = @intCast(offsets[row + 1]);
    if (first == end) return &.{}; // where all lists are empty there are no values to point at
    return column.elements(T)[first..end];
}

inline fn list_has(comptime T: type, list: []align(1) const T, value: T) bool {
    for (list) |element| if (element == value) return true;
    return false;
}

// ---- the tests; `match` looks at one row and leaves nulls to the forms

const NullTest = struct {
    const of_null = true;

    inline fn match(leaf: *const Leaf, row: usize) bool {
        return !leaf.column.is_valid(row);
    }

    inline fn match_word(leaf: *const Leaf, first: usize, count: usize) u64 {
        return ~leaf.column.valid_word(first, count);
    }
};

const BoolTest = struct {
    inline fn match(leaf: *const Leaf, row: usize) bool {
        return leaf.operands.bools[@intFromBool(leaf.column.bool_at(row))];
    }

    inline fn match_word(leaf: *const Leaf, first: usize, count: usize) u64 {
        const bits = column_room.load_bits(leaf.column.values.?, leaf.column.values_offset + first, count);
        const accepted = leaf.operands.bools;
        return (if (accepted[1]) bits else 0) | (if (accepted[0]) ~bits else 0);
    }
};

fn RangeTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            const value = leaf.column.elements(T)[row];
            const inside_low = value >= from_word(T, leaf.operands.range[0]);
            const inside_high = value <= from_word(T, leaf.operands.range[1]);
            return inside_low and inside_high; // both false for NaN
        }

        inline fn match_word(leaf: *const Leaf, first: usize, count: usize) u64 {
            const low = from_word(T, leaf.operands.range[0]);
            const high = from_word(T, leaf.operands.range[1]);
            const values = leaf.column.elements(T) + first;
            if (count < 64) {
                var bits: u64 = 0;
                for (values[0..count], 0..) |value, i| {
                    bits |= @as(u64, @intFromBool(value >= low and value <= high)) << @intCast(i);
                }
                return bits;
            }
            const lanes = 16;
            const Lanes = @Vector(lanes, T);
            var bits: u64 = 0;
            inline for (0..64 / lanes) |part| {
                const some: Lanes = values[part * lanes ..][0..lanes].*;
                const above: u16 = @bitCast(some >= @as(Lanes, @splat(low)));
                const below: u16 = @bitCast(some <= @as(Lanes, @splat(high)));
                bits |= @as(u64, above & below) << (part * lanes);
            }
            return bits;
        }
    };
}

fn SortedTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            return sorted_has(T, sorted_values(T, leaf), leaf.column.elements(T)[row]);
        }
    };
}

fn DenseTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            return dense_has(T, &leaf.operands.dense, leaf.column.elements(T)[row]);
        }
    };
}

fn ContainsAllTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            const signed = &leaf.operands.signed;
            if (signed.signatures[row] & signed.bits != signed.bits) return false;
            const list = list_of(T, &leaf.column, row);
            const wanted: []const T = @alignCast(std.mem.bytesAsSlice(T, signed.bytes));
            if (list.len < wanted.len) return false;
            for (wanted) |value| if (!list_has(T, list, value)) return false;
            return true;
        }
    };
}

fn ContainsFewTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            const signed = &leaf.operands.signed;
            if (signed.signatures[row] & signed.bits == 0) return false;
            const list = list_of(T, &leaf.column, row);
            const wanted: []const T = @alignCast(std.mem.bytesAsSlice(T, signed.bytes));
            for (wanted) |value| if (list_has(T, list, value)) return true;
            return false;
        }
    };
}

fn ContainsDenseTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            for (list_of(T, &leaf.column, row)) |element| if (dense_has(T, &leaf.operands.dense, element)) return true;
            return false;
        }
    };
}

fn ContainsAnyTest(comptime T: type) type {
    return struct {
        inline fn match(leaf: *const Leaf, row: usize) bool {
            const wanted = sorted_values(T, leaf);
            for (list_of(T, &leaf.column, row)) |element| if (sorted_has(T, wanted, element)) return true;
            return false;
        }
    };
}

fn Forms(comptime Test: type) type {
    const of_null = @hasDecl(Test, "of_null");
    return struct {
        fn passes(leaf: *const Leaf, row: usize) bool {
            if (!of_null and !leaf.column.is_valid(row)) return false;
            return Test.match(leaf, row) != leaf.negated;
        }

        fn word(leaf: *const Leaf, first: usize, count: usize, alive: u64) u64 {
            const open = if (of_null) alive else alive & leaf.column.valid_word(first, count);
            if (open == 0) return 0;
            if (@hasDecl(Test, "match_word")) {
                const matched = Test.match_word(leaf, first, count);
                return open & (if (leaf.negated) ~matched else matched);
            }
            var passed: u64 = 0;
            var left = open;
            while (left != 0) : (left &= left - 1) {
                const i: u6 = @intCast(@ctz(left));
                passed |= @as(u64, @intFromBool(Test.match(leaf, first + i) != leaf.negated)) << i;
            }
            return passed;
        }

        fn gather(leaf: *const Leaf, rows: []const u32, alive: u64) u64 {
            assert(rows.len <= 64);
            var passed: u64 = 0;
            var left = alive;
            while (left != 0) : (left &= left - 1) {
                const i: u6 = @intCast(@ctz(left));
                passed |= @as(u64, @intFromBool(passes(leaf, rows[i]))) << i;
            }
            return passed;
        }
    };
}

// ---- trees ----
//
// The tree of a filter with `not` only at its leaves: De Morgan's laws hold in three-valued logic. Then `all` and `any`
// are monotone and a row is true under them exactly when enough children are true, so that from here on "false or
// null" is one value and two are enough.

pub const Node = union(enum) {
    constant: bool,
    leaf: *const Leaf,
    all: []*Node,
    any: []*Node,
};

/// The two kinds of 64 rows.
pub const Neighbors = struct {
    first: usize,
    count: usize,

    pub inline fn check(self: Neighbors, leaf: *const Leaf, alive: u64) u64 {
        return leaf.word(leaf, self.first, self.count, alive);
    }

    /// The word of rows from 64 · i.
    pub fn of(i: usize, row_count: usize) Neighbors {
        return .{ .first = 64 * i, .count = @min(64, row_count - 64 * i) };
    }
};

pub const Gathered = struct {
    rows: []const u32,

    pub inline fn check(self: Gathered, leaf: *const Leaf, alive: u64) u64 {
        return leaf.gather(leaf, self.rows, alive);
    }
};

/// Those of `alive` that pass. The depth is bounded by program.depth_max.
pub fn evaluate(node: *const Node, rows: anytype, alive: u64) u64 {
    switch (node.*) {
        .constant => |value| return if (value) alive else 0,
        .leaf => |leaf| return rows.check(leaf, alive),
        .all => |children| {
            var passed = alive;
            for (children) |child| {
                if (passed == 0) break;
                passed = evaluate(child, rows, passed);
            }
            return passed;
        },
        .any => |children| {
            var open = alive;
            for (children) |child| {
                if (open == 0) break;
                open &= ~evaluate(child, rows, open);
            }
            return alive & ~open;
        },
    }
}

/// Moves `not` down to the leaves and folds constants.
pub fn build(
    arena: std.mem.Allocator,
    columns: *Columns,
    nodes: []const program.Node,
    at: u32,
    negated: bool,
    leaves: *usize,
    diagnostic: *Diagnostic,
) PartError!*Node {
    const node = try arena.create(Node);
    switch (nodes[at]) {
        .not => |child| return build(arena, columns, nodes, child, !negated, leaves, diagnostic),
        .constant => |value| node.* = .{ .constant = value != negated },
        .leaf => |parsed| {
            const leaf = try arena.create(Leaf);
            leaf.* = try Leaf.init(arena, columns, parsed, negated, diagnostic);
            leaves.* += 1;
            node.* = .{ .leaf = leaf };
        },
        inline .all, .any => |indices, tag| {
            const children = try arena.alloc(*Node, indices.len);
            for (children, indices) |*child, index| child.* = try build(arena, columns, nodes, index, negated, leaves, diagnostic);
            node.* = join((tag == .all) != negated, children);
        },
    }
    return node;
}

fn join(is_all: bool, children: []*Node) Node {
    var kept: usize = 0;
    for (children) |child| {
        if (child.* == .constant) {
            if (child.constant != is_all) return .{ .constant = !is_all };
            continue;
        }
        children[kept] = child;
        kept += 1;
    }
    if (kept == 0) return .{ .constant = is_all };
    if (kept == 1) return children[0].*;
    return if (is_all) .{ .all = children[0..kept] } else .{ .any = children[0..kept] };
}

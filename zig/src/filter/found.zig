//! What the postings of a column know of one test: which of their places hold what it looks for.
const std = @import("std");
const column_room = @import("column.zig");
const postings = @import("postings.zig");
const program = @import("program.zig");
const Column = column_room.Column;
const Columns = column_room.Columns;
const ColumnPostings = postings.ColumnPostings;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Span = postings.Span;

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

    pub fn of(arena: std.mem.Allocator, columns: *Columns, parsed: program.Leaf, diagnostic: *Diagnostic) postings.PartError!?Found {
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
            const T = program.ValueType(t);
            return postings.key_of(T, parsed.operands.get(T, i).?).?;
        },
    }
}

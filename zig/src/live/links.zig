//! Neighbors of the delta's rows, in memory: a graph that one linker makes while any number of searches walk it.
//!
//! A row has a list of fixed room. Every change of a list is one store of one word: a neighbor is added behind the others,
//! or takes another's place. So a reader needs no lock: each word that it reads names a row that is linked, and whose own
//! list was there before. A row that takes a neighbor's place has that neighbor in its own list before. So every row
//! that could be reached from the first row can be reached at any moment.
//!
//! Rows lie in chunks that never move, and so do chunks' places: readers hold no lock while the delta grows.
const std = @import("std");
const base = @import("base");

/// Most neighbors of a row.
pub const degree = 24;
const chunk_rows = 256;

const Atomic = std.atomic.Value(u32);

const no_row = std.math.maxInt(u32);

const List = struct {
    count: Atomic,
    /// The next row with the same vector.
    copy: Atomic,
    rows: [degree]Atomic,
};

const Chunk = struct {
    vectors: [chunk_rows][*]const u8,
    lists: [chunk_rows]List,
};

/// Bytes of a row.
pub const row_bytes = @sizeOf([*]const u8) + @sizeOf(List);

/// Twice as many chunks in each table as in the one before.
const tables_max = 25;

pub const Links = struct {
    tables: [tables_max]?[*]*Chunk = @splat(null),
    chunks: u32 = 0,
    /// One links at a time.
    linker: std.Thread.Mutex = .{},
    /// Rows below are linked.
    linked: Atomic = .init(0),
    /// The number of candidates that a walk keeps, so that it finds of ten nearest all but one in a hundred (link.zig); a float.
    /// It begins above what most data take, since few rows have been measured by then.
    list_size: Atomic = .init(@bitCast(@as(f32, 128))),
    /// Rows that a walk measures for each place of its list; a float.
    visits: Atomic = .init(@bitCast(@as(f32, 16))),
    /// The same of walks within what segments have found, by the places of a whole list.
    visits_within: Atomic = .init(@bitCast(@as(f32, 4))),

    pub fn deinit(self: *Links, allocator: std.mem.Allocator) void {
        for (0..self.chunks) |number| allocator.destroy(self.chunk(@intCast(number)));
        for (self.tables, 0..) |table, t| if (table) |some| allocator.free(some[0 .. @as(usize, 1) << @intCast(t)]);
        self.* = undefined;
    }

    inline fn chunk(self: *const Links, number: u32) *Chunk {
        const table = 31 - @clz(number + 1);
        return self.tables[table].?[number + 1 - (@as(u32, 1) << @intCast(table))];
    }

    /// Number of rows that have room.
    pub fn reserve(self: *Links, allocator: std.mem.Allocator, rows: u32) error{OutOfMemory}!void {
        while (@as(u64, self.chunks) * chunk_rows < rows) {
            const table = 31 - @clz(self.chunks + 1);
            const size = @as(u32, 1) << @intCast(table);
            if (self.tables[table] == null) self.tables[table] = (try allocator.alloc(*Chunk, size)).ptr;
            const made = try allocator.create(Chunk);
            for (&made.lists) |*one| {
                one.count = .init(0);
                one.copy = .init(no_row);
            }
            self.tables[table].?[self.chunks + 1 - size] = made;
            self.chunks += 1;
        }
    }

    /// The vectors of rows from `first` on, one after the other.
    pub fn place(self: *Links, first: u32, vectors: []const u8, count: u32) void {
        if (count == 0) return;
        const size = vectors.len / count;
        for (0..count) |i| {
            const row = first + @as(u32, @intCast(i));
            self.chunk(row / chunk_rows).vectors[row % chunk_rows] = vectors.ptr + i * size;
        }
    }

    pub inline fn vector(self: *const Links, row: u32) [*]const u8 {
        return self.chunk(row / chunk_rows).vectors[row % chunk_rows];
    }

    inline fn list(self: *const Links, row: u32) *List {
        return &self.chunk(row / chunk_rows).lists[row % chunk_rows];
    }

    /// The neighbors of a row that is linked.
    pub fn neighbors(self: *const Links, row: u32, out: *[degree]u32) []u32 {
        const one = self.list(row);
        const count = one.count.load(.acquire);
        for (out[0..count], one.rows[0..count]) |*to, *from| to.* = from.load(.acquire);
        return out[0..count];
    }

    /// Whether a row that is linked, and not the first, hangs on another.
    pub fn is_copy(self: *const Links, row: u32) bool {
        return self.list(row).count.load(.acquire) == 0;
    }

    /// The next row with the same vector; the first of them has the neighbors.
    pub fn copy_after(self: *const Links, row: u32) ?u32 {
        const next = self.list(row).copy.load(.acquire);
        return if (next == no_row) null else next;
    }

    // ---- the linker's, which holds `linker` ----

    pub fn has_room(self: *const Links, row: u32) bool {
        return self.list(row).count.load(.monotonic) < degree;
    }

    pub fn add(self: *Links, row: u32, neighbor: u32) void {
        const one = self.list(row);
        const count = one.count.load(.monotonic);
        one.rows[count].store(neighbor, .release);
        one.count.store(count + 1, .release);
    }

    pub fn add_copy(self: *Links, first: u32, copy: u32) void {
        self.list(copy).copy.store(self.list(first).copy.load(.monotonic), .release);
        self.list(first).copy.store(copy, .release);
    }

    pub fn replace(self: *Links, row: u32, at: usize, neighbor: u32) void {
        self.list(row).rows[at].store(neighbor, .release);
    }

    pub fn float(value: *const Atomic) f32 {
        return @bitCast(value.load(.monotonic));
    }

    pub fn set_float(value: *Atomic, to: f32) void {
        value.store(@bitCast(to), .monotonic);
    }
};

pub const seeds_max = 64;

/// Rows at which walks begin, one per stretch of this many rows. Between half of `seeds_max` and all of it, from all ages of the delta.
pub fn stride_of(rows: u32) u32 {
    return std.math.ceilPowerOfTwoAssert(u32, rows / seeds_max + 1);
}

/// A number that shares no pattern with the order of rows.
pub fn shuffled(row: u32) u32 {
    const mixed = (row ^ row >> 15) *% 0x9e3779b1;
    return mixed ^ mixed >> 16;
}

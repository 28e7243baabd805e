//! What one search sees: the parts and their dead rows, and the delta up to a row, as they were at one moment. It stays as it
//! is while others write, and outlives the folder that it was taken of.
const std = @import("std");
const base = @import("base");
const delta_room = @import("delta.zig");
const scan = @import("scan.zig");
const BitSet = base.BitSet;
const Delta = delta_room.Delta;
const Record = delta_room.Record;

pub const PartView = struct {
    /// In the view's own memory.
    path: []const u8,
    uuid: []const u8,
    n: u64,
    /// Null: none of its rows is dead.
    dead: ?BitSet,
};

pub const View = struct {
    allocator: std.mem.Allocator,
    /// Of parts and delta: rows have other numbers once a fold has changed it.
    layout: u64,
    delta_layout: u64,
    sequence: u64,
    /// Of the columns that its rows have.
    schema_version: u64,
    parts: []PartView,
    names: []u8,
    delta: *Delta,
    records: []*Record,
    rows: u32,
    /// Of the delta.
    dead: BitSet,
    shape: scan.Shape,

    /// With the folder's `seen` held.
    pub fn take(live: anytype) error{OutOfMemory}!*View {
        const allocator = live.allocator;
        const self = try allocator.create(View);
        errdefer allocator.destroy(self);
        const parts = try allocator.alloc(PartView, live.parts.items.len);
        var size: usize = 0;
        for (live.parts.items) |part| size += part.path.len + part.uuid.len;
        const names = try allocator.alloc(u8, size);
        errdefer allocator.free(names);
        var name_bytes: std.ArrayList(u8) = .initBuffer(names);
        var made: usize = 0;
        errdefer {
            for (parts[0..made]) |*part| if (part.dead) |*set| set.deinit(allocator);
            allocator.free(parts);
        }
        for (parts, live.parts.items) |*part, *of| {
            part.* = .{ .path = append(&name_bytes, of.path), .uuid = append(&name_bytes, of.uuid), .n = of.n, .dead = null };
            if (of.dead_count > 0) {
                part.dead = try BitSet.init(allocator, @intCast(of.n));
                @memcpy(part.dead.?.words, of.dead.words);
            }
            made += 1;
        }
        const delta: *Delta = live.delta;
        const records = try allocator.dupe(*Record, delta.records.items[0..delta.shown_records]);
        errdefer allocator.free(records);
        var dead = try BitSet.init(allocator, delta.shown_rows);
        copy_bits(&dead, &delta.dead.bits);
        self.* = .{
            .allocator = allocator,
            .layout = live.layout,
            .delta_layout = live.delta_layout,
            .sequence = live.shown_sequence,
            .schema_version = live.schema_version,
            .parts = parts,
            .names = names,
            .delta = delta.hold(),
            .records = records,
            .rows = delta.shown_rows,
            .dead = dead,
            .shape = live.shape(),
        };
        return self;
    }

    fn append(to: *std.ArrayList(u8), text: []const u8) []const u8 {
        to.appendSliceAssumeCapacity(text);
        return to.items[to.items.len - text.len ..];
    }

    fn copy_bits(to: *BitSet, from: *const std.DynamicBitSetUnmanaged) void {
        for (to.words, from.masks[0..to.words.len]) |*word, mask| word.* = mask;
        const rest: u6 = @intCast(to.len % 64);
        if (rest != 0) to.words[to.words.len - 1] &= (@as(u64, 1) << rest) - 1;
    }

    pub fn release(self: *View) void {
        const allocator = self.allocator;
        for (self.parts) |*part| if (part.dead) |*set| set.deinit(allocator);
        allocator.free(self.parts);
        allocator.free(self.names);
        allocator.free(self.records);
        self.dead.deinit(allocator);
        self.delta.release();
        allocator.destroy(self);
    }
};

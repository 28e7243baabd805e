//! A file system decided by a seed: a crash loses, keeps or tears (at 512 bytes) unsynced writes, names apart from
//! contents; a sync may fail, and then a later one does not make up for it; the disk may be full. The contract is
//! zig/src/live/store.zig.
const std = @import("std");
const base = @import("base");
const live_room = @import("live");
const Page = live_room.page.Page;

const sector_bytes = 512;

pub const Faults = struct {
    /// One write in `full` finds the disk full, in the middle; 0: none.
    full: u32 = 0,
    /// One sync in `sync` fails; 0: none.
    sync: u32 = 0,
};

pub const SimulatedStore = struct {
    const Change = union(enum) {
        write: struct { offset: u64, bytes: []const u8 },
        truncate: u64,
    };
    const Node = struct {
        is_folder: bool = false,
        holds: u32 = 0,
        /// Content that a crash keeps for certain.
        durable: std.ArrayList(u8) = .empty,
        current: std.ArrayList(u8) = .empty,
        unsynced: std.ArrayList(Change) = .empty,
    };
    const NameChange = union(enum) {
        set: struct { name: []const u8, node: u32 },
        remove: []const u8,
        rename: struct { from: []const u8, to: []const u8, node: u32 },

        fn folder(self: NameChange) []const u8 {
            return folder_of(switch (self) {
                .set => |set| set.name,
                .remove => |name| name,
                .rename => |renamed| renamed.to,
            });
        }
    };
    const Names = std.StringArrayHashMapUnmanaged(u32);

    /// A call in the middle of another, once.
    pub const Interruption = struct {
        call: *const fn (*SimulatedStore) void,
        /// Looks or changes that precede it.
        after: u64 = 0,
    };

    pub const File = u32;
    pub const Map = []align(8) const u8;
    pub const Hold = u32;

    arena: std.heap.ArenaAllocator,
    prng: base.Prng,
    faults: Faults = .{},
    nodes: std.ArrayList(Node) = .empty,
    names: Names = .empty,
    durable_names: Names = .empty,
    unsynced_names: std.ArrayList(NameChange) = .empty,
    /// Changes made so far, and the one at which it crashes.
    changes: u64 = 0,
    crash_at: u64 = std.math.maxInt(u64),
    crashed: bool = false,
    locked: bool = false,
    leases: u32 = 0,
    page: Page = std.mem.zeroes(Page),
    boots: u8 = 1,
    /// Called at the begin of every sync, of files and of folders: what others can do while a device takes its time.
    on_sync: ?*const fn (*SimulatedStore) void = null,
    /// Before a look at a name or into a file: what a writer may do between two looks of a reader.
    on_read: ?Interruption = null,
    /// Before a change of a file or a name: what a reader may see between two steps of a writer.
    on_change: ?Interruption = null,

    pub fn init(allocator: std.mem.Allocator, seed: u64) SimulatedStore {
        return .{ .arena = .init(allocator), .prng = .init(seed) };
    }

    pub fn deinit(self: *SimulatedStore) void {
        self.arena.deinit();
    }

    fn folder_of(name: []const u8) []const u8 {
        const at = std.mem.lastIndexOfScalar(u8, name, '/') orelse return ".";
        return name[0..at];
    }

    fn interrupt(self: *SimulatedStore, by: *?Interruption) void {
        const due = if (by.*) |*found| found else return;
        if (due.after > 0) {
            due.after -= 1;
            return;
        }
        const call = due.call;
        by.* = null;
        call(self);
    }

    /// Every change to the world begins here. True: the crash comes in the middle of it.
    fn change(self: *SimulatedStore) error{Crashed}!bool {
        if (self.crashed) return error.Crashed;
        self.interrupt(&self.on_change);
        self.changes += 1;
        if (self.changes < self.crash_at) return false;
        self.crashed = true;
        return true;
    }

    /// The power is gone, and comes back: of what was not synced any subset is there.
    pub fn restart(self: *SimulatedStore) !void {
        const share = self.survival();
        for (self.nodes.items) |*node| {
            for (node.unsynced.items) |one| try self.survive(node, one, share);
            node.unsynced.clearRetainingCapacity();
            node.current.clearRetainingCapacity();
            try node.current.appendSlice(self.arena.allocator(), node.durable.items);
        }
        for (self.unsynced_names.items) |one| if (self.prng.float() < share) try self.apply_name(&self.durable_names, one);
        self.unsynced_names.clearRetainingCapacity();
        // Files in a folder without a name are gone.
        var i: usize = 0;
        while (i < self.durable_names.count()) {
            const folder = folder_of(self.durable_names.keys()[i]);
            if (std.mem.eql(u8, folder, ".") or self.durable_names.contains(folder)) i += 1 else self.durable_names.orderedRemoveAt(i);
        }
        self.names = try self.durable_names.clone(self.arena.allocator());
        self.crashed = false;
        self.boots +%= 2; // never 0
        self.kill();
        self.crash_at = std.math.maxInt(u64);
    }

    /// The process is gone, the system stays.
    pub fn kill(self: *SimulatedStore) void {
        self.locked = false;
        self.leases = 0;
    }

    fn survival(self: *SimulatedStore) f32 {
        return switch (self.prng.below(4)) {
            0 => 0,
            1 => 1,
            2 => 0.5,
            else => self.prng.float(),
        };
    }

    fn survive(self: *SimulatedStore, node: *Node, one: Change, share: f32) !void {
        const allocator = self.arena.allocator();
        switch (one) {
            .truncate => |length| if (self.prng.float() < share) try set_length(allocator, &node.durable, length),
            .write => |write_| {
                var at: u64 = write_.offset;
                const end = write_.offset + write_.bytes.len;
                while (at < end) {
                    const stop = @min(end, (at / sector_bytes + 1) * sector_bytes);
                    if (self.prng.float() < share) try put(allocator, &node.durable, at, write_.bytes[@intCast(at - write_.offset)..@intCast(stop - write_.offset)]);
                    at = stop;
                }
            },
        }
    }

    fn put(allocator: std.mem.Allocator, content: *std.ArrayList(u8), offset: u64, bytes: []const u8) !void {
        const end: usize = @intCast(offset + bytes.len);
        if (content.items.len < end) try set_length(allocator, content, end);
        @memcpy(content.items[@intCast(offset)..end], bytes);
    }

    fn set_length(allocator: std.mem.Allocator, content: *std.ArrayList(u8), length: u64) !void {
        const before = content.items.len;
        try content.resize(allocator, @intCast(length));
        if (length > before) @memset(content.items[before..], 0);
    }

    fn apply_name(self: *SimulatedStore, names: *Names, one: NameChange) !void {
        const allocator = self.arena.allocator();
        switch (one) {
            .set => |set| try names.put(allocator, set.name, set.node),
            .remove => |name| _ = names.orderedRemove(name),
            .rename => |rename_| {
                _ = names.orderedRemove(rename_.from);
                try names.put(allocator, rename_.to, rename_.node);
            },
        }
    }

    fn change_name(self: *SimulatedStore, one: NameChange) !void {
        const crash = try self.change();
        if (crash and self.prng.boolean()) return error.Crashed;
        try self.apply_name(&self.names, one);
        try self.unsynced_names.append(self.arena.allocator(), one);
        if (crash) return error.Crashed;
    }

    fn node_of(self: *SimulatedStore, name: []const u8) error{ FileNotFound, Crashed }!u32 {
        if (self.crashed) return error.Crashed;
        return self.names.get(name) orelse error.FileNotFound;
    }

    fn own(self: *SimulatedStore, name: []const u8) ![]const u8 {
        return self.arena.allocator().dupe(u8, name);
    }

    // ---- the contract ----

    pub fn lock(self: *SimulatedStore, _: u64) !bool {
        if (self.locked) return false;
        self.locked = true;
        return true;
    }

    pub fn unlock(self: *SimulatedStore) void {
        self.locked = false;
    }

    pub fn open_page(self: *SimulatedStore, _: enum { read, write }) !?*Page {
        return &self.page;
    }

    pub fn page_is_linked(_: *SimulatedStore) !bool {
        return true;
    }

    pub fn take_lease(self: *SimulatedStore) !bool {
        self.leases += 1;
        return self.leases == 1;
    }

    pub fn boot(self: *SimulatedStore) [16]u8 {
        return @splat(self.boots);
    }

    pub fn stat(self: *SimulatedStore, file: File) !live_room.Stat {
        return .{ .size = try self.size(file), .is_linked = std.mem.indexOfScalar(u32, self.names.values(), file) != null };
    }

    pub fn create(self: *SimulatedStore, name: []const u8) !File {
        if (self.names.get(name)) |node| {
            try self.truncate(node, 0);
            return node;
        }
        const node: u32 = @intCast(self.nodes.items.len);
        try self.nodes.append(self.arena.allocator(), .{});
        try self.change_name(.{ .set = .{ .name = try self.own(name), .node = node } });
        return node;
    }

    pub fn open_file(self: *SimulatedStore, name: []const u8, _: std.fs.File.OpenMode) !File {
        self.read_begins();
        return self.node_of(name);
    }

    pub fn close(_: *SimulatedStore, _: File) void {}

    pub fn size(self: *SimulatedStore, file: File) !u64 {
        self.read_begins();
        if (self.crashed) return error.Crashed;
        return self.nodes.items[file].current.items.len;
    }

    pub fn read(self: *SimulatedStore, file: File, buffer: []u8, offset: u64) !usize {
        self.read_begins();
        if (self.crashed) return error.Crashed;
        const content = self.nodes.items[file].current.items;
        if (offset >= content.len) return 0;
        const len = @min(buffer.len, content.len - @as(usize, @intCast(offset)));
        @memcpy(buffer[0..len], content[@intCast(offset)..][0..len]);
        return len;
    }

    pub fn write(self: *SimulatedStore, file: File, bytes: []const u8, offset: u64) !void {
        const crash = try self.change();
        const full = self.faults.full > 0 and self.prng.below(self.faults.full) == 0;
        const len: usize = if (crash or full) @intCast(self.prng.below(bytes.len + 1)) else bytes.len;
        const allocator = self.arena.allocator();
        const node = &self.nodes.items[file];
        const copy = try allocator.dupe(u8, bytes[0..len]);
        if (len > 0) {
            try put(allocator, &node.current, offset, copy);
            try node.unsynced.append(allocator, .{ .write = .{ .offset = offset, .bytes = copy } });
        }
        if (crash) return error.Crashed;
        if (full) return error.NoSpaceLeft;
    }

    pub fn sync(self: *SimulatedStore, file: File) !void {
        if (self.on_sync) |call| call(self);
        const crash = try self.change();
        const node = &self.nodes.items[file];
        const fails = self.faults.sync > 0 and self.prng.below(self.faults.sync) == 0;
        if (crash and self.prng.boolean()) return error.Crashed;
        const share: f32 = if (fails) self.survival() else 1;
        for (node.unsynced.items) |one| try self.survive(node, one, share);
        node.unsynced.clearRetainingCapacity(); // a later sync does not try again
        if (crash) return error.Crashed;
        if (fails) return error.InputOutput;
    }

    pub fn truncate(self: *SimulatedStore, file: File, length: u64) !void {
        const crash = try self.change();
        if (crash and self.prng.boolean()) return error.Crashed;
        const node = &self.nodes.items[file];
        try set_length(self.arena.allocator(), &node.current, length);
        try node.unsynced.append(self.arena.allocator(), .{ .truncate = length });
        if (crash) return error.Crashed;
    }

    pub fn rename(self: *SimulatedStore, from: []const u8, to: []const u8) !void {
        const node = try self.node_of(from);
        try self.change_name(.{ .rename = .{ .from = try self.own(from), .to = try self.own(to), .node = node } });
    }

    pub fn link(self: *SimulatedStore, from: []const u8, to: []const u8) !void {
        const node = try self.node_of(from);
        if (self.names.contains(to)) return error.PathAlreadyExists;
        try self.change_name(.{ .set = .{ .name = try self.own(to), .node = node } });
    }

    pub fn remove(self: *SimulatedStore, name: []const u8) !void {
        _ = try self.node_of(name);
        try self.change_name(.{ .remove = try self.own(name) });
    }

    pub fn make_folder(self: *SimulatedStore, name: []const u8) !void {
        if (self.crashed) return error.Crashed;
        if (self.names.contains(name)) return error.PathAlreadyExists;
        const node: u32 = @intCast(self.nodes.items.len);
        try self.nodes.append(self.arena.allocator(), .{ .is_folder = true });
        try self.change_name(.{ .set = .{ .name = try self.own(name), .node = node } });
    }

    pub fn remove_folder(self: *SimulatedStore, name: []const u8) !void {
        if (self.crashed) return error.Crashed;
        var i: usize = 0;
        while (i < self.names.count()) {
            const inside = self.names.keys()[i];
            if (std.mem.eql(u8, folder_of(inside), name)) try self.change_name(.{ .remove = inside }) else i += 1;
        }
        if (self.names.contains(name)) try self.change_name(.{ .remove = try self.own(name) });
    }

    pub fn remove_unheld(self: *SimulatedStore, name: []const u8) !void {
        const node = try self.node_of(name);
        if (self.nodes.items[node].holds == 0) try self.remove_folder(name);
    }

    pub fn hold(self: *SimulatedStore, name: []const u8) !Hold {
        self.read_begins();
        const node = try self.node_of(name);
        self.nodes.items[node].holds += 1;
        return node;
    }

    pub fn release(self: *SimulatedStore, held: Hold) void {
        self.nodes.items[held].holds -= 1;
    }

    /// Before each look at a name or into a file.
    fn read_begins(self: *SimulatedStore) void {
        self.interrupt(&self.on_read);
    }

    pub fn sync_folder(self: *SimulatedStore, name: []const u8) !void {
        if (self.on_sync) |call| call(self);
        const crash = try self.change();
        if (crash and self.prng.boolean()) return error.Crashed;
        if (self.faults.sync > 0 and self.prng.below(self.faults.sync) == 0) return error.InputOutput;
        var kept: usize = 0;
        for (self.unsynced_names.items) |one| {
            if (std.mem.eql(u8, one.folder(), name)) {
                try self.apply_name(&self.durable_names, one);
            } else {
                self.unsynced_names.items[kept] = one;
                kept += 1;
            }
        }
        self.unsynced_names.shrinkRetainingCapacity(kept);
        if (crash) return error.Crashed;
    }

    pub fn exists(self: *SimulatedStore, name: []const u8) !bool {
        self.read_begins();
        if (self.crashed) return error.Crashed;
        return self.names.contains(name);
    }

    pub fn list(self: *SimulatedStore, arena: std.mem.Allocator) ![]const []const u8 {
        if (self.crashed) return error.Crashed;
        var found: std.ArrayList([]const u8) = .empty;
        for (self.names.keys()) |name| {
            if (std.mem.indexOfScalar(u8, name, '/') == null) try found.append(arena, try arena.dupe(u8, name));
        }
        return found.items;
    }

    pub fn map(self: *SimulatedStore, name: []const u8) !Map {
        self.read_begins();
        const node = try self.node_of(name);
        const content = self.nodes.items[node].current.items;
        if (content.len == 0) return error.EndOfStream;
        const copy = try self.arena.allocator().alignedAlloc(u8, .@"8", content.len);
        @memcpy(copy, content);
        return copy;
    }

    pub fn unmap(_: *SimulatedStore, _: Map) void {}
};

test "what was synced survives, what was not survives in parts of a sector, names apart from contents" {
    var lost: u32 = 0;
    var kept: u32 = 0;
    var torn: u32 = 0;
    for (0..200) |seed| {
        var store = SimulatedStore.init(std.testing.allocator, seed);
        defer store.deinit();
        const file = try store.create("a");
        try store.write(file, "synced", 0);
        try store.sync(file);
        try store.sync_folder(".");
        const more: [2 * sector_bytes]u8 = @splat('x');
        try store.write(file, &more, sector_bytes);
        _ = try store.create("b");
        try store.restart();
        try std.testing.expectEqualStrings("synced", store.nodes.items[file].current.items[0..6]);
        const content = store.nodes.items[file].current.items;
        const count = std.mem.count(u8, content, "x");
        try std.testing.expect(count % sector_bytes == 0);
        torn += @intFromBool(count == sector_bytes);
        if (store.names.contains("b")) kept += 1 else lost += 1;
    }
    try std.testing.expect(lost > 20 and kept > 20 and torn > 20);
}

test "a rename is there or not; of a folder without a name nothing is left" {
    for (0..100) |seed| {
        var store = SimulatedStore.init(std.testing.allocator, seed);
        defer store.deinit();
        for ([_][]const u8{ "a", "b" }) |name| {
            const file = try store.create(name);
            try store.write(file, name, 0);
            try store.sync(file);
        }
        try store.make_folder("f");
        try store.link("a", "f/a");
        try store.sync_folder("f");
        if (seed % 2 == 0) try store.sync_folder(".");
        try store.rename("a", "b");
        try store.restart();
        if (seed % 2 == 0) {
            try std.testing.expectEqual(1, @intFromBool(store.names.contains("a")) + @as(u32, @intFromBool(store.nodes.items[store.names.get("b").?].current.items[0] == 'a')));
            try std.testing.expect(store.names.contains("f/a"));
        } else try std.testing.expectEqual(store.names.contains("f"), store.names.contains("f/a"));
    }
}

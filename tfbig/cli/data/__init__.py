"""The images, bags, masks, tables and splits that commands train on."""
